"""A record as it is read: whole, under other conditions, cut, gone on with, and of many steps."""

import json
import subprocess
import sys

import pytest

from samebits.errors import UsageError
from samebits.protocol.record.lines import CONDITIONS, DIFFERS, END, Chain, few, plain_number, split, unlinked
from samebits.protocol.record.reading import read_record
from tests.support.recorded import CONDITIONS_HERE, START_HERE, body_of, lines_of, write_lines


def read(tmp_path, lines):
    return read_record(write_lines(tmp_path / "record.jsonl", lines))


def test_a_record_says_what_was_written(tmp_path):
    record = read(tmp_path, lines_of(range(1, 47), end="sha256:ab"))
    assert record.last == 46
    assert list(record.lines) == list(range(1, 47))
    assert {key: value for key, value in record.step(7).items() if key != "chain"} == body_of(7)
    assert record.starts == [START_HERE]
    assert record.conditions == [(0, CONDITIONS_HERE)]
    assert record.conditions_of(1) == record.conditions_of(46) == CONDITIONS_HERE
    assert record.end == (46, "sha256:ab")
    assert (record.broken, record.gaps, record.is_cut, record.differs) == ("", [], False, None)
    assert record.step(47) is None
    assert record.link(47) == ""


def test_equal_links_mean_equal_beginnings(tmp_path):
    one = read(tmp_path / "one", lines_of(range(1, 11)))
    other = read(tmp_path / "other", lines_of(range(1, 11), changed={6: {"loss": [0.5]}}))
    assert [step for step in range(1, 11) if one.link(step) == other.link(step)] == [1, 2, 3, 4, 5]


def test_no_step_is_no_line_and_many_values_are_a_hash():
    assert few([1.0, 2.0]) == [1.0, 2.0]
    assert few([1.0] * 9).startswith("9 of ")
    assert [plain_number(one) for one in (0.5, None, float("nan"), float("-inf"))] == [0.5, None, "nan", "-inf"]


def test_steps_that_were_made_again_under_other_conditions_take_the_place_of_those_before(tmp_path):
    lines = lines_of(range(1, 11), end="sha256:ab")
    chain = Chain(split(lines[2 + 6])[1])
    others = {**CONDITIONS_HERE, "torch": "2.10.0"}
    again = [chain.line({CONDITIONS: others, "after": 6}), *(chain.line(body_of(step)) for step in range(7, 10))]
    record = read(tmp_path, [*lines, *again])
    assert record.last == 9
    assert record.end is None, "what had ended goes on"
    assert record.broken == ""
    assert record.conditions == [(0, CONDITIONS_HERE), (6, others)]
    assert list(record.condition_lines) == [0, 6]
    assert (record.conditions_of(6), record.conditions_of(7)) == (CONDITIONS_HERE, others)


def test_conditions_that_go_back_to_the_beginning_begin_the_chain_again(tmp_path):
    lines = lines_of(range(1, 4))
    record = read(tmp_path, [*lines, *lines_of(range(1, 3), {"torch": "2.10.0"})[2:]])
    assert (record.last, record.broken) == (2, "")
    assert record.conditions == [(0, {"torch": "2.10.0"})]


def test_steps_without_a_backward_are_no_gap_and_steps_that_nobody_recorded_are(tmp_path):
    record = read(tmp_path, lines_of([1, 2, 5, 9, 10], changed={5: {"from": 3}}))
    assert (record.gaps, record.broken) == ([(6, 8)], "")
    assert read(tmp_path, lines_of([7, 8])).gaps == [(1, 6)]


def test_a_cut_last_line_is_left_out_and_told(tmp_path):
    data = b"\n".join(lines_of(range(1, 6)))
    path = tmp_path / "record.jsonl"
    for cut in range(1, len(data.split(b"\n")[-1])):
        path.write_bytes(data[:-cut])
        record = read_record(path)
        assert (record.last, record.is_cut, record.broken) == (4, True, "")


def test_what_follows_a_step_that_came_again_otherwise_is_no_record(tmp_path):
    lines = lines_of(range(1, 6))
    differs = unlinked({DIFFERS: 3, "was": body_of(3), "is": body_of(3, loss=[0.25])})
    record = read(tmp_path, [*lines, differs])
    assert record.differs == json.loads(differs)
    assert record.broken == ""
    after = Chain(split(lines[-1])[1]).line(body_of(6))
    assert "line 10 follows" in read(tmp_path, [*lines, differs, after]).broken


def test_an_end_is_one_behind_the_last_step_alone(tmp_path):
    lines = lines_of(range(1, 6))
    assert read(tmp_path, [*lines, unlinked({END: 5, "bits": ""})]).end == (5, "")
    for step in (4, 5):
        end = unlinked({END: step, "bits": ""})
        assert read(tmp_path, [*lines[:-1], end, lines[-1]]).end is None
    assert read(tmp_path, [*lines, unlinked({END: 6, "bits": ""})]).end is None


def test_a_run_folder_without_a_record_is_told_what_to_do(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_record(tmp_path / "record.jsonl")


MEASURE = """
import sys
from pathlib import Path
from samebits.protocol.record.reading import read_record

record = read_record(Path(sys.argv[1]))
assert record.last == 100_000 and not record.broken
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_a_hundred_thousand_steps_are_read_in_little_memory(tmp_path):
    path = write_lines(tmp_path / "record.jsonl", lines_of(range(1, 100_001)))
    done = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 200 * 1024
