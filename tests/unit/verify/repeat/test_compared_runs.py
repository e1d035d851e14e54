"""Which differences between two recorded runs count, and what a run says that was ended when all was recorded."""

import json

from samebits.verify.evidence import Evidence, ItemAtStep
from samebits.verify.repeat.recorded import Made, read_made
from samebits.verify.repeat.result import compare
from samebits.verify.repeat.started import Ended


def evidence(steps, states):
    items = {ItemAtStep(step, "parameter a"): f"{step}" for step in range(1, steps + 1)}
    return Evidence((items | {ItemAtStep(step, "optimizer lr"): "0.1" for step in states},))


def test_states_that_only_one_side_recorded_are_no_difference():
    assert compare(("saved", evidence(5, (1, 5))), ("run", evidence(5, (1,)))) is None
    shorter = compare(("run 1", evidence(3, (1, 3))), ("run 2", evidence(5, (1, 5))))
    assert shorter is not None
    assert str(shorter.place) == "step 4, parameter a"


def recorded(folder, cut, **ended):
    lines = [{"begin": 1, "facts": {}}, {"step": 1, "items": {"parameter a": "1"}}]
    end = {"end": 1, "cut": cut, "spent_s": 0.0, "took_s": 1.0}
    (folder / "rank-00000.1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (*lines, end)))
    return read_made(Ended("run 1", folder, seconds=1.0, **ended), 5.0)


def test_what_a_script_does_behind_its_last_wanted_step_is_nothing_to_compare(tmp_path):
    assert isinstance(recorded(tmp_path, True, code=1), Made)
    assert isinstance(recorded(tmp_path, True, code=-9, is_late=True), Made)
    assert "exit code 1" in recorded(tmp_path, False, code=1)
