"""What is recorded of a process's settings, however the script made them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from samebits.rank.init.numerics import flags, rounded_to


def by_the_new_names() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]


def by_the_old_names() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(autouse=True)
def _settings_of_before():
    yield
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = "tf32"  # type: ignore[attr-defined]


@pytest.mark.parametrize("switch", [by_the_new_names, by_the_old_names])
def test_tf32_is_recorded_by_whichever_names_it_was_switched_on(switch: Callable[[], None]) -> None:
    switch()
    told = flags()
    assert told["cuda.matmul.fp32_precision"] == "tf32"
    assert told["cudnn.conv.fp32_precision"] in {"ieee", "none"}


@pytest.mark.parametrize("switch", [by_the_new_names, by_the_old_names])
def test_products_that_round_are_told_by_their_dtype(switch: Callable[[], None]) -> None:
    torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    assert rounded_to("cuda") == []
    switch()
    assert rounded_to("cuda") == ["tfloat32"]
    torch.set_float32_matmul_precision("medium")
    assert rounded_to("cpu") == ["bfloat16"]
