"""What a script keeps by itself is found wherever it keeps it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.run.watch.own_values import OwnChanges, OwnValues

START = """
class Meter:
    total = 0.0
    def __init__(self):
        self.sum, self.parts = 0.0, []
    def update(self, value):
        self.sum += value
    @classmethod
    def count(cls):
        cls.total += 1

def counter():
    n = 0
    def count():
        nonlocal n
        n += 1
    return count

def count_globally():
    global calls
    calls += 1

calls, count, old, held = 0, counter(), Meter(), {"a": [Meter()]}
for epoch in range(2):
    body()
    new = Meter()
    old.parts = []
    BODY
    steps()
    for step in range(2):
        STEP
    look()
"""


def found(tmp_path: Path, step: str, body: str = "pass") -> list[str]:
    """What is told at the end of each epoch's steps."""
    file = tmp_path / "train.py"
    file.write_text(START.replace("STEP", step).replace("BODY", body))
    own, told = OwnChanges(), []

    def now() -> OwnValues:
        return OwnValues([], [])

    names: dict[str, Any] = {"__name__": "__main__"}
    acts: dict[str, Callable[[], None]] = {
        "body": lambda: own.enter_body(now()),
        "steps": lambda: own.enter_steps(now()),
        "look": lambda: told.append(own.changed(now())),
    }
    exec(compile(file.read_text(), str(file), "exec"), names | acts)
    return told


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("new.update(1.0)", "new.sum"),
        ("old.update(1.0)", "old.sum"),
        ("old.parts.append(1)", "old.parts"),
        ("held['a'][0].update(1.0)", "held['a'][0].sum"),
        ("Meter.count()", "Meter.total"),
        ("count()", "count.n"),
        ("count_globally()", "count_globally.calls"),
    ],
)
def test_what_steps_change_is_found(tmp_path: Path, step: str, name: str) -> None:
    assert found(tmp_path, step) == [name, name]


def test_what_only_an_earlier_epoch_changed_is_found(tmp_path: Path) -> None:
    assert found(tmp_path, "if epoch == 0: old.update(1.0)") == ["old.sum", "old.sum"]


@pytest.mark.parametrize(
    ("step", "body"), [("pass", "pass"), ("loss = step + 1.0", "old.epoch = epoch"), ("pass", "new.update(epoch)")]
)
def test_what_a_body_makes_anew_is_not(tmp_path: Path, step: str, body: str) -> None:
    assert found(tmp_path, step, body) == ["", ""]
