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
import torch
best, total, losses, seen, history, ema, group = 0.0, 0.0, [], set(), {"loss": []}, Average(), None
tensor = torch.zeros(2)
def scaled(value): return value * total
def twice(value): return scaled(value) * 2
def other(total, loss=1.0): return total * loss  # names of its own, one of them a method's elsewhere
class Loss:
    def loss(self, value): return value * total
    def forward(self, value): return value * total
def run(function): pass
loader = range(1)
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

    def __call__(self, value: float) -> None:
        """Not a function's."""

    loss = __call__


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
        ("if step == 5: total = 1.0\n        print(total)", "pass", ["total"]),
        ("if step == 5: print(step)\n        else: total = 1.0\n        print(total)", "pass", ["total"]),
        ("try: total = {5: 1.0}[step]\n        except KeyError: pass\n        print(total)", "pass", ["total"]),
        ("while total < step: total = total + 0.37", "pass", ["total"]),
        ("for total in range(step): pass\n        print(total)", "pass", ["total"]),
        ("match step:\n            case 5: total = 2.0\n        print(total)", "pass", ["total"]),
        ("print(total := total + 1.0)", "pass", ["total"]),
        ("run(lambda: total * 2); total = 1.0", "pass", ["total"]),
        ("scaled(1.0); total = 1.0", "pass", ["total"]),
        ("twice(1.0); total = 1.0", "pass", ["total"]),
        ("ema.loss(1.0); total = 1.0", "pass", ["total"]),
        ("ema(1.0); total = 1.0", "pass", ["total"]),
        ("del history['loss']", "pass", ["history['loss']"]),
        ("tensor.add_(1.0)", "pass", ["tensor"]),
        ("globals()['total'] = 1.0", "pass", ["globals()['total']"]),
        ("if step == 5: ema = Average()\n        ema.update(1.0)", "pass", ["ema"]),
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
        ("if step: loss = 1.0\n        else: loss = 2.0\n        print(loss)", "pass"),
        ("if not step: continue\n        loss = 1.0; print(loss)", "pass"),
        ("match step:\n            case 5: loss = 2.0\n            case _: loss = 1.0\n        print(loss)", "pass"),
        ("try: loss = 1.0\n        finally: print(step)\n        print(loss)", "pass"),
        ("total = 1.0; scaled(1.0); ema.loss(1.0); run(lambda: total)", "pass"),
        ("total = 1.0", "pass"),
        ("for one in [[step]]:\n            for _ in one: loss = 1.0\n        print(loss)", "pass"),
        ("loss = 1.0; run(lambda loss: loss)", "pass"),
        ("other(1.0); total = 1.0", "pass"),
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
        ("loss = 1.0; print(loss)", "if epoch: loss = 2.0\n    print(loss)", ["loss"]),
        ("total = 1.0; print(total)", "scaled(1.0)", ["total"]),
        ("for batch in [1]: loss = batch", "print(best)\n    for batch in [2]: print(batch)", []),
    ],
)
def test_what_is_read_behind_the_loop_is_found(tmp_path: Path, body: str, after: str, names: list[str]) -> None:
    assert carried(tmp_path, body, after, left_variables) == names


A_DATA_SET = """
class Data:
    def __getitem__(self, number): return number * level
level = 0.0
for epoch in range(1):
    for step in range(1):
        look()
    level = 1.0
"""


def test_a_loop_over_samples_reads_what_the_data_set_reads(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(A_DATA_SET)
    found: list[str] = []
    names = {"look": lambda: found.extend(carried_variables(lambda _: False)), "__name__": "__main__"}
    exec(compile(A_DATA_SET, str(file), "exec"), names)
    assert found == ["level"]


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
