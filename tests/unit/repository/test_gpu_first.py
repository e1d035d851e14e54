"""The first quarter of an hour on a GPU: what runs beside what, what time is left, the record, and what may be said of it."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.environment import ROOT
from tests.support.launching import until

sys.path.insert(0, str(ROOT))  # the benchmarks are beside the tests, and in no package that is installed

from benchmarks.gpu_day.__main__ import objection_to_first
from benchmarks.gpu_day.blocks import Day
from benchmarks.gpu_day.building import Building
from benchmarks.gpu_day.claim import NEVER, newest, pages, sentence, table
from benchmarks.gpu_day.claim import together as put_together
from benchmarks.gpu_day.first import tasks
from benchmarks.gpu_day.hardware import Hardware
from benchmarks.gpu_day.outcome import State
from benchmarks.gpu_day.record import as_text, fitted
from benchmarks.gpu_day.side_by_side import Together, carry_out_together
from benchmarks.gpu_day.tasks import COMPILED, Task

REAL_GPU = Hardware(("NVIDIA H200",), 140 << 30, "2.11.0+cu130", "13.0", "", "3.12.3", "none", ("sklearn", "triton", "pytest", "hypothesis", "psutil"), False)  # fmt: skip
PRETENDED = Hardware(("P",), 1, "", "", "", "", "", (), True)


def timed(name, seconds=0.0, takes_s=1.0, **more):
    code = f"import time; print(time.monotonic()); time.sleep({seconds}); print(time.monotonic())"
    return ("b", Task(name, (sys.executable, "-c", code), takes_s=takes_s, **more))


def together(tmp_path, seconds, width=2, hardware=REAL_GPU, **more):
    building = more.get("building") or Building(tmp_path, os.environ, is_wanted=False)
    return Together(
        hardware, dict(os.environ), building, time.monotonic() + seconds, width, more.get("tell", lambda _: None)
    )


def test_what_is_timed_runs_alone_and_in_its_turn(tmp_path):
    seen = []
    todo = [timed("a", 0.4), timed("b", 0.4), timed("c", 0.2, is_alone=True), timed("d")]
    outcomes = {
        one.task: one
        for one in carry_out_together(todo, together(tmp_path, 60, tell=lambda names: seen.append(set(names))))
    }
    assert {one.state for one in outcomes.values()} == {State.OK}
    assert {"b: a", "b: b"} in seen, "two run beside each other"
    assert all(len(names) == 1 for names in seen if "b: c" in names), "a timed one does not"


def test_what_would_not_end_is_not_begun_and_what_comes_after_still_may(tmp_path):
    todo = [timed("long", takes_s=50.0), timed("short")]
    outcomes = list(carry_out_together(todo, together(tmp_path, 10)))
    assert [(one.task, one.state) for one in outcomes] == [("long", State.NO_TIME), ("short", State.OK)]
    assert "it takes about 50" in outcomes[0].says


def test_a_task_is_cut_off_at_its_limit_and_not_begun_for_nothing(tmp_path):
    [outcome] = carry_out_together([timed("hangs", 60.0, limit_s=2.0)], together(tmp_path, 60))
    assert (outcome.state, outcome.seconds < 20) == (State.CUT_OFF, True)


def test_the_time_of_all_ends_what_still_runs(tmp_path):
    [outcome] = carry_out_together([timed("hangs", 60.0)], together(tmp_path, 2))
    assert (outcome.state, outcome.seconds < 20) == (State.NO_TIME, True)
    assert "when the time was over" in outcome.says


def test_who_stops_reading_leaves_no_process(tmp_path):
    file = tmp_path / "child"
    todo = [timed("quick"), ("b", Task("hangs", ("sh", "-c", f"sleep 60 & echo $! > {file}; wait"), takes_s=1.0))]
    outcomes = carry_out_together(todo, together(tmp_path, 60))
    next(outcomes)
    until(lambda: file.exists() and file.read_text().strip(), "the task to begin")
    outcomes.close()
    child = int(file.read_text())
    until(lambda: not Path(f"/proc/{child}/exe").exists(), "the end of what a task has started")
    assert threading.active_count() < 10


class UnderWay:
    """A build that ends after some looks."""

    def __init__(self, looks, state):
        self._left, self.state = looks, state

    @property
    def is_under_way(self):
        self._left -= 1
        return self._left > 0

    @property
    def is_there(self):
        return self._left <= 0 and self.state == "built"

    def variables(self, given):
        return dict(given)


@pytest.mark.parametrize(("state", "expected"), [("built", State.OK), ("failed: no compiler", State.NOT_HERE)])
def test_what_needs_the_compiled_part_waits_for_it_behind_the_others(tmp_path, state, expected):
    todo = [timed("compiled", needs=(COMPILED,)), timed("plain")]
    building = UnderWay(5, state)
    outcomes = list(carry_out_together(todo, together(tmp_path, 60, building=building, width=1)))
    assert [one.task for one in outcomes] == ["plain", "compiled"]
    assert outcomes[1].state is expected
    assert outcomes[0].is_compiled is False


def test_options_of_the_first_minutes_that_cannot_be_met_are_one_sentence():
    for is_first, blocks, minutes, only, said in (
        (True, [], 4.0, "", ""), (False, [], 4.0, "", "--minutes needs --first"), (False, [], None, "bits", "--only"),
        (True, ["bits"], None, "", "tasks of its own"), (True, [], 0.1, "", "too little"), (True, [], 100.0, "", "hour"),
    ):  # fmt: skip
        problem = objection_to_first(is_first, blocks, minutes, only)
        assert said in problem
        assert bool(problem) == bool(said)


def test_the_tasks_have_names_of_their_own_and_limits_that_fit():
    for hardware in (REAL_GPU, PRETENDED):
        todo = tasks(Day(hardware, False))
        assert len({(block, task.name) for block, task in todo}) == len(todo)
        assert all(task.takes_s <= task.limit_s <= 590 for _, task in todo)
    assert todo[0][1].name == "digits.py", "the most telling one comes first"


def test_a_record_is_small_whatever_was_printed():
    outcome = {"block": "b", "task": "t", "output": "x" * 5000, "figures": {"turns": [1.0] * 1000}}
    whole = {"date": "d", "outcomes": [outcome] * 20}
    assert len(as_text(whole)) > 200_000
    assert fitted(whole, 1 << 20)["outcomes"][0]["output"] == "x" * 4000
    short = fitted(whole, 100_000)
    assert len(as_text(short)) <= 100_000
    assert fitted(whole, 500)["outcomes"][0]["figures"] == {}


TOLD = {
    "date": "2026-11-27 00:06 UTC", "commit": "abc", "hardware": {"gpus": ["NVIDIA H200"], "torch": "2.11.0", "python": "3.12.3"},
    "outcomes": [
        {"block": "bits", "task": "mixture 32", "state": "ok", "says": "same | bits", "figures": {"ranks": [1, 2]}},
        {"block": "rest", "task": "fused", "state": "FAILED", "says": "boom", "figures": {}},
        {"block": "rest", "task": "late", "state": "no time", "says": "", "figures": {}},
    ],
}  # fmt: skip


def test_what_may_be_said_of_gpus_comes_from_the_record():
    assert sentence({}, "g.md").startswith(NEVER)
    said = sentence(TOLD, "g.md")
    assert said.startswith(
        "tried on one NVIDIA H200 (torch 2.11.0, 2026-11-27): the same bits on 1 and 2 ranks that share it, in float32"
    )
    broken = {**TOLD, "outcomes": [{**TOLD["outcomes"][0], "state": "FAILED"}]}
    assert "0 of 1 proofs of the same bits held" in sentence(broken, "g.md")
    rows = table(TOLD)
    assert "| bits | mixture 32 | ok | same / bits |" in rows
    assert rows.endswith("Not tried then: late.")


def test_records_of_a_day_are_put_together_by_their_last_word_on_each_task():
    first = {"block": "rest", "task": "late", "state": "ok", "says": "now", "figures": {}}
    again = {**TOLD, "date": "2026-11-27 02:00 UTC", "commit": "def", "outcomes": [first]}
    older = {**TOLD, "date": "2026-10-01 00:00 UTC", "outcomes": [{**first, "task": "other day"}]}
    found = put_together([older, TOLD, again])
    assert {one["task"]: one["state"] for one in found["outcomes"]} == {
        "mixture 32": "ok",
        "fused": "FAILED",
        "late": "ok",
    }
    assert found["commit"] == "abc, def"
    assert {one["task"]: one["state"] for one in put_together([again, TOLD])["outcomes"]}["late"] == "ok"


def test_the_pages_say_what_the_newest_record_says():
    assert newest(), "there is a record"
    for page, text in pages().items():
        assert page.read_text() == text, f"{page.name}: run python -m benchmarks.gpu_day.claim"
