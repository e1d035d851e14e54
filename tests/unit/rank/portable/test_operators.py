"""Operators that aren't known to give the same bits on every CPU are refused by name; the others are torch's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from samebits.errors import UsageError
from samebits.machine.torch_private import operator_names
from samebits.rank.portable import operators
from tests.portable import operators as checks
from tests.portable.verdict import compare
from tests.support.portable import needs_portable

RECORDED = Path(checks.__file__).with_name("recorded.json")


@pytest.fixture
def _refused() -> Iterator[None]:
    operators.refuse_uncovered()
    yield
    operators.lift()


def small() -> torch.Tensor:
    return torch.ones(32, 32, dtype=torch.int8)


@pytest.mark.usefixtures("_refused")
def test_an_operator_that_is_not_covered_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="does not cover the operator aten::_int_mm: its bits may depend") as told:
        torch._int_mm(small(), small())
    assert told.value.fix.startswith("Write it with operators that are covered")


@pytest.mark.usefixtures("_refused")
@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "aten::quantize_per_tensor"),
        (lambda: torch.ones(3, 3).to_mkldnn(), "aten::to_mkldnn"),
    ],
)
def test_quantized_tensors_and_those_of_onednn_are_refused_where_they_are_made(
    what: Callable[[], object], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        what()


@pytest.mark.usefixtures("_refused")
def test_autocast_in_bfloat16_passes() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        product = torch.ones(3, 3) @ torch.ones(3, 3)
    assert product.dtype is torch.bfloat16


def test_an_operator_that_only_the_backward_pass_calls_is_refused_there(monkeypatch: pytest.MonkeyPatch) -> None:
    without = operators.covered() - {"CPU sigmoid_backward"}
    monkeypatch.setattr(operators, "covered", lambda: without)
    operators.refuse_uncovered()
    try:
        loss = torch.ones(3, requires_grad=True).sigmoid().sum()
        with pytest.raises(UsageError, match="aten::sigmoid_backward"):
            loss.backward()
    finally:
        operators.lift()


@pytest.mark.usefixtures("_refused")
def test_a_step_of_training_passes() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(108, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    torch.nn.functional.cross_entropy(model(torch.rand(4, 1, 8, 8)), torch.arange(4)).backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def test_a_second_call_refuses_only_what_was_registered_since() -> None:
    assert operators.refuse_uncovered() > 500
    try:
        assert operators.refuse_uncovered() == 0
        own = torch.library.Library("samebits_test_extension", "DEF")
        own.define("twice(Tensor x) -> Tensor")
        own.impl("twice", lambda x: x + x, "CPU")
        assert operators.refuse_uncovered() == 1
        with pytest.raises(UsageError, match="samebits_test_extension::twice"):
            torch.ops.samebits_test_extension.twice(torch.ones(2))
    finally:
        operators.lift()
    assert torch.ops.samebits_test_extension.twice(torch.ones(2)).tolist() == [2, 2]


def test_lifted_every_operator_is_torchs_again() -> None:
    operators.refuse_uncovered()
    operators.lift()
    assert torch._int_mm(small(), small())[0, 0] == 32


def test_what_is_covered_exists_in_torch_and_is_sorted() -> None:
    there = {operators.base_name(name) for name in operator_names()}
    lines = [line for line in (Path(operators.__file__).with_name("covered.txt")).read_text().splitlines() if line]
    assert lines == sorted(lines)
    assert set(lines) == operators.covered()
    assert {line.partition(" ")[0] for line in lines} == {*operators.BY_LIST}
    assert not [line for line in lines if line.partition(" ")[2] not in there]


@pytest.mark.parametrize(
    "name", ["copy", "empty", "zeros_like", "view", "_local_scalar_dense", "cat", "index", "detach", "is_pinned"]
)
def test_operators_that_only_move_or_read_are_covered(name: str) -> None:
    assert f"CPU {name}" in operators.covered() or not operators.has_kernel(f"aten::{name}", "CPU")


@pytest.mark.thorough
@needs_portable
def test_the_recorded_checks_give_the_recorded_bits(tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text())
    if recorded["torch"] != torch.__version__.partition("+")[0]:
        pytest.skip(f"recorded for torch {recorded['torch']}")
    checks.run(tmp_path / "now.json", None, list(recorded["checks"]), portable=True)
    kinds = compare(recorded["checks"], json.loads((tmp_path / "now.json").read_text()))
    assert set(kinds) <= {"equal", "fails in both"}, {
        kind: found[:5] for kind, found in kinds.items() if kind != "equal"
    }
