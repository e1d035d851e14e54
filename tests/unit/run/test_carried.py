"""Which variables a script carries from step to step, found in its source."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.run.watch.carried import carried_variables, left_variables

START = """
from collections import defaultdict
best, total, losses, seen, history, ema, group = 0.0, 0.0, [], set(), {"loss": []}, Average(), None
for epoch in range(1):
    tally = Tally()
    for step in range(1):
        look()
        {body}
    {after}
"""


class Average:
    """An object of the script's own."""

    def __init__(self) -> None:
        self.value = 0.0

    def update(self, value: float) -> None:
        """Not a container's."""


def carried(
    tmp_path: Path,
    body: str,
    after: str = "pass",
    look: Callable[[], list[str]] = lambda: carried_variables(lambda _: False),
) -> list[str]:
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(START).replace("{body}", body).replace("{after}", after))
    found: list[str] = []
    names: dict[str, Any] = {"Average": Average, "Tally": Average, "print": lambda *_: None, "__name__": "__main__"}
    names["look"] = lambda: found.extend(look())  # called from the script's frame
    exec(compile(file.read_text(), str(file), "exec"), names)
    return found


@pytest.mark.parametrize(
    ("body", "after", "names"),
    [
        ("total += 1.0", "pass", ["total"]),
        ("total = total + 1.0", "pass", ["total"]),
        ("losses.append(1.0)", "pass", ["losses"]),
        ("history['loss'].append(1.0)", "pass", ["history"]),
        ("seen.add(step)", "pass", ["seen"]),
        ("ema.value = 1.0", "pass", ["ema.value"]),
        ("pass", "best = max(best, 1.0)", ["best"]),
        ("pass", "if 1.0 > best:\n        best = 1.0", ["best"]),
    ],
)
def test_what_the_next_step_reads_is_carried(tmp_path: Path, body: str, after: str, names: list[str]) -> None:
    assert carried(tmp_path, body, after) == names


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("loss = 1.0; print(loss)", "pass"),
        ("for a, b in [(1, 2)]: loss = a + b", "accuracy = 2.0; print(accuracy, epoch)"),
        ("tally.update(1.0)", "print(best)"),
        ("ema.update(1.0)", "pass"),
        ("values = [one for one in range(3)]; values.append(1)", "pass"),
        ("with open('/dev/null') as file: print(file)", "pass"),
    ],
)
def test_what_a_step_makes_anew_is_not(tmp_path: Path, body: str, after: str) -> None:
    assert carried(tmp_path, body, after) == []


@pytest.mark.parametrize(
    ("body", "after", "names"),
    [
        ("pass", "print(step)", ["step"]),
        ("loss = 1.0; print(loss)", "print(loss, epoch)", ["loss"]),
        ("loss = 1.0; print(loss)", "if epoch: print(loss)", ["loss"]),
        ("loss = 1.0; print(loss)", "loss = 2.0; print(loss)", []),
        ("for batch in [1]: loss = batch", "print(best)\n    for batch in [2]: print(batch)", []),
    ],
)
def test_what_is_read_behind_the_loop_is_found(tmp_path: Path, body: str, after: str, names: list[str]) -> None:
    assert carried(tmp_path, body, after, left_variables) == names


IN_A_FUNCTION = """
def train():
    for step in range(1):
        look()
        loss = 1.0
    return loss

def later(step, loss):
    print(step, loss)

later(train(), 2.0)
step = 5
print(step)
"""


def test_only_the_loop_s_own_function_counts(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(IN_A_FUNCTION)
    found: list[str] = []
    names = {"look": lambda: found.extend(left_variables()), "print": lambda *_: None, "__name__": "__main__"}
    exec(compile(IN_A_FUNCTION, str(file), "exec"), names)
    assert found == ["loss"]
