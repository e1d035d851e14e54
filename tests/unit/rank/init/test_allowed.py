"""Operators that may compute without a deterministic form: which they are, and that no other may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

from samebits.errors import UsageError
from samebits.machine.torch_private import operator_names
from samebits.protocol.journal.torch_words import operator_of
from samebits.rank.init.numerics import allow, overloads

SAID = [
    *("nll_loss2d_forward_out_cuda_template", "nll_loss2d_backward_out_cuda_template", "ctc_loss_backward_gpu"),
    *("adaptive_avg_pool2d_backward_cuda", "adaptive_max_pool2d_backward_cuda", "avg_pool3d_backward_cuda"),
    *("fractional_max_pool2d_backward_cuda", "max_unpooling2d_forward_out", "max_unpooling3d_forward_out"),
    *("upsample_bicubic2d_backward_out_cuda", "upsample_linear1d_backward_out_cuda", "reflection_pad2d_backward_cuda"),
    *("grid_sampler_2d_backward_cuda", "embedding_bag_backward_cuda_max", "cumsum_cuda_kernel", "_histc_cuda"),
    *("_bincount_cuda", "median", "kthvalue", "put_"),
]
"""The first words of torch's errors."""


@pytest.fixture
def _exact() -> Iterator[None]:
    torch.set_deterministic_debug_mode("error")
    yield
    allow(())
    torch.set_deterministic_debug_mode("default")


@pytest.mark.parametrize("said", SAID)
def test_the_name_in_torchs_error_leads_to_an_operator(said: str) -> None:
    assert overloads(operator_of(said), operator_names())


def test_a_name_stands_for_forward_and_backward_and_for_no_other_operator() -> None:
    known = [
        "aten::nll_loss2d_forward",
        "aten::nll_loss2d_backward.grad_input",
        "aten::nll_loss_forward",
        "aten::_ctc_loss",
    ]
    assert overloads("nll_loss2d", known) == known[:2]
    assert overloads("nll_loss", known) == known[2:3]
    assert overloads("aten::ctc_loss", known) == known[3:]


@pytest.mark.parametrize(("name", "fix"), [("nll_loss2", "Try nll_loss2d"), ("", "Take the name"), ("qqq", "Take")])
def test_an_operator_that_torch_has_not_is_one_sentence(name: str, fix: str) -> None:
    with pytest.raises(UsageError, match="torch has no such operator") as told:
        overloads(name, operator_names())
    assert fix in told.value.fix


def unpooled() -> torch.Tensor:
    x = torch.arange(16.0, requires_grad=True).view(1, 1, 4, 4)
    top, places = F.max_pool2d(x, 2, return_indices=True)
    whole = F.max_unpool2d(top, places, 2)
    whole.sum().backward()
    return whole.detach()


@pytest.mark.usefixtures("_exact")
def test_only_what_is_allowed_runs_and_only_as_long_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="does not have a deterministic"):
        unpooled()
    allow(["max_unpool2d", "aten::max_unpool2d"])
    assert unpooled().sum() == 5 + 7 + 13 + 15
    assert torch.get_deterministic_debug_mode() == 2
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic"):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    allow(["put"])
    torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    with pytest.raises(RuntimeError, match="max_unpooling2d_forward_out does not"):
        unpooled()


@pytest.mark.usefixtures("_exact")
def test_an_allowed_operator_that_raises_leaves_the_switch_on() -> None:
    allow(["put"])
    with pytest.raises((RuntimeError, IndexError)):
        torch.zeros(3).put_(torch.tensor([7]), torch.ones(1))
    assert torch.get_deterministic_debug_mode() == 2
