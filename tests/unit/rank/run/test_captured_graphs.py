"""A model that torch.cuda.make_graphed_callables captured before `prepare`, known by the forward that torch puts into it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType

import pytest
import torch
from torch import nn

from samebits.errors import UsageError
from samebits.rank.run.prepare.refusals import refuse_captured


def inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from inside(constant)


def torchs_own_forward() -> FunctionType:
    """The very function that torch makes for a captured module, without the graphs that only a GPU can make."""
    [code] = [code for code in inside(torch.cuda.make_graphed_callables.__code__) if code.co_name == "new_fwd"]
    return FunctionType(code, {}, closure=tuple(CellType(None) for _ in code.co_freevars))


def test_a_model_that_was_captured_before_is_refused_with_the_part() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    refuse_captured(model)
    model[1][0].forward = torchs_own_forward()
    with pytest.raises(UsageError, match=r"whose 1\.0 was captured by torch.cuda.make_graphed_callables") as told:
        refuse_captured(model)
    assert told.value.fix == "Prepare the model first, and capture it then."


def test_a_forward_of_the_script_is_none_of_these() -> None:
    model = nn.Linear(2, 2)
    model.forward = functools.partial(model.forward)
    refuse_captured(model)
    model.forward = nn.Linear(2, 2).forward
    refuse_captured(model)
