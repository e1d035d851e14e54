"""Which differences between two recorded runs count, and what a run says that was ended when all was recorded."""

import json

import pytest

from samebits.verify.evidence import End, Evidence, ItemAtStep
from samebits.verify.repeat.recorded import Made, read_made
from samebits.verify.repeat.result import Repeated, compare
from samebits.verify.repeat.started import Ended


def evidence(steps, states=(), has_ended=False):
    items = {ItemAtStep(step, "parameter a"): f"{step}" for step in range(1, steps + 1)}
    states = {ItemAtStep(step, "optimizer lr"): "0.1" for step in states}
    return Evidence((items | states,), End(over=True, reached=has_ended))


def test_states_that_only_one_side_recorded_are_no_difference():
    assert compare(("saved", evidence(5, (1, 5))), ("run", evidence(5, (1,)))) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "ended", "step"),
    [
        ((3, (1, 3), True), (5, (1, 5), True), "left", 4),
        ((3, (1, 3), True), (3, (1, 3)), "left", 4),
        ((5, (1, 5)), (3, (1, 3), True), "right", 4),
        ((3, (1, 3)), (5, (1, 5), True), None, None),
        ((5, (1, 5)), (5, (1, 5)), None, None),
        ((5, (1, 5), True), (5, (1, 5), True), None, None),
    ],
)
def test_a_step_that_only_one_side_makes_is_a_difference_where_the_other_had_ended(ours, theirs, ended, step):
    apart = compare(("left", evidence(*ours)), ("right", evidence(*theirs)))
    assert (apart and apart.ended) == ended
    assert (apart and apart.place.step) == step


def recorded(folder, cut, **ended):
    lines = [{"begin": 1, "facts": {}}, {"step": 1, "items": {"parameter a": "1"}}]
    end = {"end": 1, "cut": cut, "normal": True, "spent_s": 0.0, "took_s": 1.0}
    (folder / "rank-00000.1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (*lines, end)))
    return read_made(Ended("run 1", folder, seconds=1.0, **ended), 5.0)


def test_what_a_script_does_behind_its_last_wanted_step_is_nothing_to_compare(tmp_path):
    assert isinstance(recorded(tmp_path, True, code=1), Made)
    assert isinstance(recorded(tmp_path, True, code=-9, is_late=True), Made)
    assert "exit code 1" in recorded(tmp_path, False, code=1)


@pytest.mark.parametrize(("written", "said"), [("", "step 1"), ('{"last": 1}\n{"step": 2, "it', "--steps 1")])
def test_a_process_that_could_not_say_its_end_is_nothing_to_compare(tmp_path, written, said):
    (tmp_path / "rank-00000.1.jsonl").write_text(f'{{"begin": 1, "facts": {{}}}}\n{written}')
    found = read_made(Ended("run 1", tmp_path, 0, seconds=1.0), 5.0)
    assert "not as Python ends" in found
    assert said in found


def test_threads_that_train_at_once_are_nothing_to_compare(tmp_path):
    lines = '{"begin": 1, "facts": {}}', '{"threads": ["one", "other"]}'
    (tmp_path / "rank-00000.1.jsonl").write_text("\n".join(lines))
    found = read_made(Ended("run 1", tmp_path, 1, seconds=9.0, is_late=True), 5.0)
    assert "Two threads of one process train at once, one and other" in found


@pytest.mark.parametrize("known", [{"recorded_step": 3}, {"against": "bits.json"}], ids=str)
def test_ranks_whose_bits_are_in_no_file_are_named(known):
    assert "ranks but 0" in Repeated("train.py", 3, 2, **known).not_covered()
    assert "ranks but 0" not in Repeated("train.py", 3, None, **known).not_covered()
