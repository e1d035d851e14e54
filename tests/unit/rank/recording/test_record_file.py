"""A record's file over starts that are killed anywhere: what is read back is what one undisturbed run would have written."""

import itertools
import os

import pytest

from samebits.protocol.record.lines import START, STEP
from samebits.protocol.record.reading import read_record
from samebits.rank.recording.record_file import RecordFile
from tests.support.recorded import body_of

NUM_STEPS = 5
FILES = {0: {"train.py": "a"}, 2: {"data.py": "b"}, 4: {"evaluate.py": "c"}}
"""Imported after how many steps."""
ALL_FILES = {name: digest for files in FILES.values() for name, digest in files.items()}


def conditions(torch, files):
    return {"torch": torch, "script": "train.py", "files": dict(sorted(files.items()))}


def run(path, first, last, torch="2.9.0", imported=None, cut=0, **changed):
    """A start of the ranks from step `first` to `last`, whose file is closed as by a kill.

    Args:
        path: of the record.
        first: step.
        last: step.
        torch: a condition.
        imported: files that it has imported before its first step, besides those of step 0.
        cut: how many bytes of its last line are lost.
        changed: what its steps say otherwise.
    """
    file = RecordFile(path, first)
    known = {**FILES[0], **FILES.get(first - 1, {}), **(imported or {})}
    file.begin({START: first - 1, "ranks": 1}, conditions(torch, known))
    found = None
    for step in range(first, last + 1):
        if step - 1 in FILES and step != first and not known.items() >= FILES[step - 1].items():
            known |= FILES[step - 1]
            file.note_files(known, step - 1)
        found = found or file.add_step(body_of(step, **changed))
    os.close(file._descriptor)
    if cut:
        os.truncate(path, path.stat().st_size - cut)
    return found


def counted(path):
    """The lines that count, in the order of the chain."""
    record = read_record(path)
    assert not record.broken
    assert not record.gaps
    assert record.differs is None
    return list(record.condition_lines.items()), list(record.lines.items())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "record.jsonl"
    assert run(path, 1, NUM_STEPS) is None
    found = counted(path)
    assert [after for after, _ in found[0]] == [0, 2, 4]
    return found


STARTS = [
    (first, last, second, middle, third)
    for first in (1,)
    for last in range(1, NUM_STEPS + 1)
    for second in range(1, last + 2)
    for middle in range(second, NUM_STEPS + 1)
    for third in range(1, middle + 2)
    if second <= NUM_STEPS >= third
]


def places(tmp_path):
    return (tmp_path / f"{number}.jsonl" for number in itertools.count())


def test_a_run_that_is_killed_at_any_two_steps_has_the_record_of_one_that_is_not(tmp_path, undisturbed):
    files = places(tmp_path)
    for first, last, second, middle, third in STARTS:
        path = next(files)
        for begin, end in ((first, last), (second, middle), (third, NUM_STEPS)):
            assert run(path, begin, end) is None
        assert counted(path) == undisturbed, (last, second, middle, third)


def test_files_that_a_later_start_imports_before_its_first_step_are_those_that_were_imported_late(
    tmp_path, undisturbed
):
    files = places(tmp_path)
    subsets = [dict(one) for number in range(4) for one in itertools.combinations(ALL_FILES.items(), number)]
    for begin, imported in itertools.product(range(1, NUM_STEPS + 1), subsets):
        for end in range(begin, NUM_STEPS + 1):
            path = next(files)
            run(path, 1, NUM_STEPS)
            assert run(path, begin, end, imported=imported) is None
            assert counted(path) == undisturbed, (begin, end, imported)


def test_a_last_line_that_is_cut_is_written_again(tmp_path, undisturbed):
    files = places(tmp_path)
    for last in range(1, NUM_STEPS + 1):
        for cut in (1, 2, 40, 150):
            path = next(files)
            run(path, 1, last, cut=cut)
            for begin in range(1, last + 1):
                assert run(path, begin, NUM_STEPS) is None
                assert counted(path) == undisturbed


@pytest.mark.parametrize("are_same_bits", [True, False])
@pytest.mark.parametrize("kinds", ["AAA", "AAB", "ABA", "ABB", "ABC"])
def test_other_conditions_take_the_place_of_those_before_from_where_they_began(tmp_path, kinds, are_same_bits):
    files = places(tmp_path)
    for first, last, second, middle, third in STARTS:
        path, expected = next(files), []
        for (begin, end), kind in zip(((first, last), (second, middle), (third, NUM_STEPS)), kinds, strict=True):
            assert run(path, begin, end, kind, **({} if are_same_bits else {"loss": [ord(kind)]})) is None
            made = [kind] * (end - begin + 1)
            is_again = expected[begin - 1 : end] == made
            expected = expected if is_again else [*expected[: begin - 1], *made, *_kept(expected, begin, end, kind)]
        record = read_record(path)
        assert not record.broken
        assert [*record.lines] == list(range(1, NUM_STEPS + 1))
        assert [record.conditions_of(step)["torch"] for step in record.lines] == expected
        for step in record.lines:
            assert {key: value for key, value in record.step(step).items() if key != "chain"} == body_of(
                step, **({} if are_same_bits else {"loss": [ord(expected[step - 1])]})
            )


def _kept(expected, begin, end, kind):
    """Steps behind the end stay where all before them were compared."""
    return expected[end:] if expected[begin - 1 : end] == [kind] * (end - begin + 1) else []


@pytest.mark.parametrize("step", range(1, NUM_STEPS + 1))
def test_the_first_step_that_comes_again_otherwise_is_named_and_ends_the_record(tmp_path, step):
    path = tmp_path / "record.jsonl"
    run(path, 1, NUM_STEPS)
    before = path.read_bytes()
    was, now = run(path, step, NUM_STEPS, loss=[0.125])
    assert (was, now) == (body_of(step), body_of(step, loss=[0.125]))
    record = read_record(path)
    assert record.differs == {"differs": step, "was": was, "is": now}
    assert record.last == NUM_STEPS
    assert path.read_bytes().startswith(before)
    assert run(path, 1, NUM_STEPS) is None
    assert read_record(path).differs == record.differs
    assert sum(line.startswith(b'{"differs"') for line in path.read_bytes().splitlines()) == 1


def test_a_start_that_goes_on_behind_steps_that_nobody_recorded_leaves_a_gap(tmp_path):
    path = tmp_path / "record.jsonl"
    run(path, 1, 2)
    run(path, 5, 6, imported=ALL_FILES)
    record = read_record(path)
    assert (record.broken, record.gaps, list(record.lines)) == ("", [(3, 4)], [1, 2, 5, 6])


@pytest.mark.parametrize(
    "damage",
    [b'{"step":x}\n', b'{"step"\n', b'{"conditions":{}}\n', b'{"conditions":\n', b'{"step":1\xff,\n', b"x" * (5 << 20)],
)
def test_a_record_that_is_damaged_cannot_be_gone_on_with(tmp_path, damage):
    path = tmp_path / "record.jsonl"
    run(path, 1, 3)
    before = path.read_bytes() + damage
    path.write_bytes(before)
    with pytest.raises(OSError, match="it is damaged"):
        RecordFile(path, 4)
    assert path.read_bytes() == before


def test_what_is_no_file_is_neither_read_nor_written(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").touch()
    (tmp_path / "link").symlink_to("other")
    for name in ("fifo", "folder", "link", "/dev/null"):
        with pytest.raises(OSError):
            RecordFile(tmp_path / name, 1)
    assert (tmp_path / "other").read_bytes() == b""


def test_a_disk_that_is_full_leaves_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "record.jsonl"
    run(path, 1, 3)
    before = path.read_bytes()
    file = RecordFile(path, 4)
    room, write = [30], os.write

    def full(descriptor, data):
        taken = min(room[0], len(data))
        room[0] -= taken
        if not taken:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:taken])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        file.add_step(body_of(4))
    assert path.read_bytes() == before
    assert STEP in read_record(path).step(3)
