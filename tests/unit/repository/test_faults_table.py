"""What `make faults` makes of the lines and notes of a run: pure, so it is tested without one."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))
from benchmarks.faults.catalogue import ROWS, SAMPLE  # noqa: E402
from benchmarks.faults.outcome import Notes, Outcome, Said, first_said, names  # noqa: E402
from benchmarks.faults.samples import NUM_SAMPLES  # noqa: E402
from benchmarks.faults.table import line, table  # noqa: E402
from samebits.testing.faults import Fault  # noqa: E402

HALF = NUM_SAMPLES // 2
FIRST, SECOND = " ".join(map(str, range(HALF))), " ".join(map(str, range(HALF, NUM_SAMPLES)))
QUIET = {
    0: f"1.0 50 samples 1 {FIRST}\n1.5 50 step 1\n1.6 50 bits abc\n",
    1: f"1.0 51 samples 1 {SECOND}\n1.5 51 step 1\n",
}


def test_what_a_lost_rank_had_begun_does_not_count_but_what_was_computed_twice_does():
    begun = f"0.9 40 samples 1 {SECOND[:20]}\n"
    assert Notes.read(QUIET | {1: begun + QUIET[1]}).each_once
    again = QUIET[0].replace("1.0 50", "2.0 60").replace("1.5 50", "2.5 60")
    notes = Notes.read({0: QUIET[0] + again, 1: QUIET[1]})
    assert (notes.computed_again, notes.each_once) == (1, True)


@pytest.mark.parametrize(
    ("text", "rank", "line_too"),
    [
        ("STALLED   5 s: rank 1 has not reached X (t.py:25)", True, True),
        ("STALLED   5 s: rank 0 has not reached X; rank 1 waits for it; rank 0 is at t.py:18", True, False),
        ("LOST      rank 1 was killed by signal 9 (SIGKILL) in step 20 (19 done, training.py:17)", True, True),
        ("error: rank 0 is at 'step 20' (t.py:25); rank 1 is at 'the end of the script'.", True, False),
        ("[rank0]: RuntimeError: Connection closed by peer", False, False),
        ("[rank1]: ValueError: no", True, False),
        ("E1123 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 25710)", True, False),
    ],
)
def test_a_rank_and_a_line_are_named_only_where_both_are_those_of_the_culprit(text, rank, line_too):
    assert names([Said(0.5, "rank 1 at t.py:1"), Said(2.0, text)], 1.0) == (rank, line_too)
    assert first_said([Said(0.5, text), Said(1.5, "step 3"), Said(2.0, text)], 1.0) == Said(2.0, text)


def test_a_row_has_both_sides_and_says_what_is_wrong():
    ours = Outcome("stopped", "F2", "ours", 2, "stalled 5 s", 5.1, True, True, 5.5, 0, True, True, 0, ())
    four = replace(ours, ranks=4, said_after_s=5.3, samples_once=False)
    theirs = Outcome("stopped", "F2", "theirs", 2, "", None, False, False, None, None, None, None, None, ("1 process",))
    (row,) = table([ours, four, theirs], "ours").splitlines()[2:]
    assert row == (
        "| stopped | F2 | stalled 5 s | rank, line | 5.1 s / 5.3 s "
        "| goes on after 5.5 s / goes on after 5.5 s; samples NOT each once "
        "| nothing |  |  | still waits after 40 s; leaves 1 process |"
    )
    assert "the fault did not happen" in line(replace(ours, trouble="the fault did not happen"))
    assert "OTHER BITS" in line(replace(ours, same_bits=False))
    assert "7 steps computed again" in line(replace(ours, lost_steps=7))


def test_every_fault_of_the_catalogue_can_be_read():
    titles = [row.title for row in ROWS]
    assert len(titles) == len(set(titles)) > 30
    for row in ROWS:
        assert not row.fault or Fault.parse(row.fault.replace(SAMPLE, "sample=3"))
