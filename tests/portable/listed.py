"""Checks of every operator on torch's own list of operators with sample inputs, and of inputs that the list lacks."""

from __future__ import annotations

import itertools
import random
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

if "expecttest" not in sys.modules:  # torch's list imports it for tests of torch's own
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

from torch.testing._internal import common_methods_invocations as listed
from torch.testing._internal.opinfo import core

HALF = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.int64, torch.bool, *HALF)
MOST_LOOKED_AT = 30
"""Samples of one operator and dtype among which the ones to run are chosen."""
MOST_RUN = {
    torch.float32: 5,
    torch.float64: 4,
    torch.complex64: 3,
    torch.int64: 2,
    torch.bool: 1,
    **dict.fromkeys(HALF, 3),
}

Check = Callable[[], tuple[Any, Any]]
"""Gives its inputs, and a function that gives outputs and gradients."""


def cases() -> dict[str, Callable[[], Iterator[tuple[Any, Callable[[], Any]]]]]:
    """Each operator and dtype, by name: a function whose items are inputs and what computes with them."""
    found = {}
    for info in listed.op_db:
        if info.name.startswith("jiterator"):  # only on GPUs
            continue
        full = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        for dtype in DTYPES:
            if dtype in info.dtypes:
                name = f"{full} {str(dtype).removeprefix('torch.')}"
                found[name] = lambda info=info, dtype=dtype: _checks(info, dtype)
        if info.supports_sparse and info.name != "mul":  # its samples take minutes
            found[f"{full} sparse"] = lambda info=info: _sparse(info)
    return found


def seed() -> None:
    """Start all streams of random numbers anew."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def _checks(info: Any, dtype: torch.dtype) -> Iterator[tuple[Any, Callable[[], Any]]]:
    differentiable = (
        info.supports_autograd and dtype in info.backward_dtypes and dtype.is_floating_point | dtype.is_complex
    )
    seed()
    samples = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=differentiable), MOST_LOOKED_AT))
    for sample in _chosen(samples, MOST_RUN[dtype]):
        yield _inputs(sample), lambda sample=sample: computed(info, sample, differentiable)
    if samples and dtype is torch.float32:
        yield from _strided(info, samples[0], differentiable)
    for args in _more(info, dtype) if samples else ():
        unary = isinstance(info, core.UnaryUfuncInfo)
        sample = core.SampleInput(
            args[0], args=samples[0].args if unary else tuple(args[1:]), kwargs=samples[0].kwargs if unary else {}
        )
        if differentiable and isinstance(sample.input, torch.Tensor):
            sample.input.requires_grad_()
        yield _inputs(sample), lambda sample=sample: computed(info, sample, differentiable)


def _strided(info: Any, sample: Any, differentiable: bool) -> Iterator[tuple[Any, Callable[[], Any]]]:
    try:
        other = sample.noncontiguous()
    except (RuntimeError, NotImplementedError):
        return
    yield _inputs(other), lambda: computed(info, other, differentiable)


def _sparse(info: Any) -> Iterator[tuple[Any, Callable[[], Any]]]:
    seed()
    grad = info.supports_autograd
    samples = list(
        itertools.islice(info.sample_inputs_sparse_coo("cpu", torch.float32, requires_grad=grad), MOST_LOOKED_AT)
    )
    for sample in _chosen(samples, 4):
        yield _inputs(sample), lambda sample=sample: computed(info, sample, grad)


def _inputs(sample: Any) -> Any:
    return [sample.input, list(sample.args), dict(sample.kwargs)]


def _size(sample: Any) -> int:
    return sum(each.numel() for each in _tensors([sample.input, sample.args]))


def _chosen(samples: list[Any], number: int) -> list[Any]:
    """The largest, the first, and others at even distances; a sample without elements among them if there is one."""
    if len(samples) <= number:
        return samples
    order = sorted(range(len(samples)), key=lambda index: (-_size(samples[index]), index))
    wanted = [order[0], 0, *(round(each * (len(samples) - 1) / number) for each in range(1, number))]
    picked = list(dict.fromkeys(wanted))[:number]
    empty = next((index for index in range(len(samples)) if _size(samples[index]) == 0), None)
    return [samples[index] for index in dict.fromkeys([*picked, *([] if empty is None else [empty])])]


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for each in tree for leaf in _tensors(each)] if isinstance(tree, (list, tuple)) else []


def computed(info: Any, sample: Any, differentiable: bool) -> Any:
    """Outputs and the gradients of everything that has one."""
    seed()
    output = info.op(sample.input, *sample.args, **sample.kwargs)
    sources = [each for each in _tensors([sample.input, list(sample.args), dict(sample.kwargs)]) if each.requires_grad]
    return [output, gradients(output, sources) if differentiable else None]


def gradients(output: Any, sources: list[torch.Tensor]) -> Any:
    """Of a fixed weighting of all outputs that have a history."""
    made = [each for each in _tensors(output) if each.grad_fn is not None]
    if not made or not sources:
        return None
    return torch.autograd.grad(made, sources, [_weights(each) for each in made], allow_unused=True)


def _weights(output: torch.Tensor) -> torch.Tensor:
    flat = torch.from_numpy((np.arange(output.numel()) * 7 % 11 - 4.25) / 4).to(output.dtype).reshape(output.shape)
    return flat.to_sparse() if output.layout is torch.sparse_coo else flat


# Inputs that torch's list lacks.


def bits(count: int, dtype: torch.dtype, stream: int) -> torch.Tensor:
    """Any bits at all: infinities, denormals, the largest and the smallest numbers; one kind of NaN.

    It is the kind that arithmetic makes: of two kinds, qemu before version 10 returns another one than a CPU does.
    """
    kinds = {torch.float32: np.float32, torch.float64: np.float64, torch.complex64: np.float32, torch.int64: np.int64}
    wide = words(count * 2, stream).view(kinds[dtype])[: count * (2 if dtype.is_complex else 1)].copy()
    if dtype is not torch.int64:
        wide[np.isnan(wide)] = -np.float32("nan")
    return torch.from_numpy(wide.view(np.complex64) if dtype.is_complex else wide)


def words(count: int, stream: int) -> Any:
    """Well mixed integers that no library had a part in."""
    mixed = np.arange(count, dtype=np.uint64) + np.uint64(stream * 1000003 + 12345)
    for shift, factor in ((30, 0x9E3779B97F4A7C15), (27, 0xBF58476D1CE4E5B9), (31, 0x94D049BB133111EB)):
        mixed = (mixed * np.uint64(factor)) ^ ((mixed * np.uint64(factor)) >> np.uint64(shift))
    return mixed


def plain(
    *shape: int, dtype: torch.dtype = torch.float32, stream: int = 0, low: float = -2.0, high: float = 2.0
) -> torch.Tensor:
    """Numbers between two limits."""
    share = (words(int(np.prod(shape)), stream) >> np.uint64(40)).astype(np.float64) / 2**24
    return torch.from_numpy(low + (high - low) * share).reshape(shape).to(dtype)


def _more(info: Any, dtype: torch.dtype) -> Iterator[list[Any]]:
    if dtype is torch.bool:
        return
    floating = dtype is not torch.int64
    if isinstance(info, core.UnaryUfuncInfo):
        if "polygamma" not in info.name and dtype not in HALF:  # it counts up from a large negative number
            yield [bits(1037, dtype, 1)]
        if floating:
            yield [plain(67, 31, dtype=dtype, stream=2)]
            yield [plain(67, 62, dtype=dtype, stream=2, low=0.01, high=0.99)[:, ::2]]
    elif isinstance(info, core.BinaryUfuncInfo):
        if (
            "polynomial" not in info.name and "zeta" not in info.name and dtype not in HALF
        ):  # they count up to the second operand
            yield [bits(1037, dtype, 1), bits(1037, dtype, 2)]
        if floating:
            yield [
                plain(67, 31, dtype=dtype, stream=2, low=0.1),
                plain(31, 67, dtype=dtype, stream=3, low=0.1, high=3).t(),
            ]
            yield [plain(67, 31, dtype=dtype, stream=2), plain(31, dtype=dtype, stream=4)]
    elif isinstance(info, core.ReductionOpInfo) and floating:
        for dims in ([], [1], [0]):
            yield [plain(37, 257, dtype=dtype, stream=5, low=0.5, high=1.5), *dims]
        if dtype not in HALF:
            yield [bits(37 * 257, dtype, 6).reshape(37, 257), 1]
