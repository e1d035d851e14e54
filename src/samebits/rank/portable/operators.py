"""Which of torch's operators give the same bits on every x86-64 CPU; all others raise when they are called.

`covered.txt` lists the covered ones, made by `python -m tests.portable.operators cover`: each ran in a check that gave
equal bits natively and as every emulated CPU, and in none that differed. What was run and what differed is in
docs/design/portable.md#operators. An operator is refused at the kernel, so also where autograd or another operator calls
it; a call of a covered one costs nothing more. Not seen here: code that computes without torch's dispatcher (ctypes,
pybind, `torch.compile`, numpy), and a kernel that a script puts in place of a covered one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from typing import Any, NoReturn

import torch

from samebits.errors import UsageError
from samebits.machine.torch_private import has_kernel, operator_names

ATEN = "aten"
BY_LIST = ("CPU", "SparseCPU", "NestedTensorCPU")
"""torch's names for the kinds of kernels of which the list decides."""
WHOLLY = ("QuantizedCPU", "MkldnnCPU", "SparseCsrCPU")
"""Kinds of kernels that are refused whatever the operator."""
WHERE = {
    "SparseCPU": "on sparse tensors",
    "NestedTensorCPU": "on nested tensors",
    "QuantizedCPU": "on quantized tensors",
    "MkldnnCPU": "on tensors in oneDNN's layout",
    "SparseCsrCPU": "on compressed sparse tensors",
}
COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""Kernels for every device; a few compute by themselves (oneDNN's and NNPACK's convolutions)."""
IMPLICIT = "CompositeImplicitAutograd"
"""Kernels made of other operators, except those in `BY_THEMSELVES`."""
BY_THEMSELVES = ("fbgemm_", "choose_qparams", "_choose_qparams", "_saturate_weight")
"""Beginnings of names of torch's own operators that call int8 libraries without another operator."""
_WORDS = (
    "prim prims debugprims rngprims c10d _c10d_functional _c10d_functional_autograd symm_mem _dtensor profiler "
    "debug_mode_ops export inductor inductor_prims _native _test samebits"
)
NO_ARITHMETIC = frozenset(_WORDS.split())
"""Namespaces that move data between ranks, or whose operators are made of aten's."""

FIX = 'Write it with operators that are covered, or choose numerics="exact", whose bits are those of one kind of CPU.'
FIXES = {
    "NestedTensorCPU": 'Pad the tensors instead (torch.backends.mha.set_fastpath_enabled(False) for torch\'s encoders), or choose numerics="exact".',
    "SparseCsrCPU": 'Use tensors in COO layout or dense ones, or choose numerics="exact".',
    "MkldnnCPU": 'Leave `to_mkldnn` out, or choose numerics="exact".',
    "QuantizedCPU": 'Compute in float32, or choose numerics="exact".',
}

_libraries: dict[str, torch.library.Library] = {}
"""By namespace; what they registered lasts as long as they do."""
_looked_at: set[str] = set()


@cache
def covered() -> frozenset[str]:
    """The covered kernels: "CPU add" stands for all overloads of `add` and `add_` on dense tensors of the CPU."""
    text = resources.files(__package__).joinpath("covered.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def base_name(operator: str) -> str:
    """`add` of `aten::add_.Tensor`: overloads and the form in place share their kernels."""
    return operator.partition("::")[2].partition(".")[0].rstrip("_")


def refuse_uncovered() -> int:
    """Make every operator that isn't covered raise `UsageError` when it is called; the number of kernels newly refused.

    Call it again once a library has registered operators of its own: only those are looked at.

    Raises:
        UsageError: nothing here, but each refused operator from now on, named, in forward and in backward.
    """
    new = {*operator_names()} - _looked_at
    _looked_at.update(new)
    refused = [(name, key) for name in new for key in refused_keys(name)]
    # Torch warns that the kernels are replaced, which is what we want.
    with warnings.catch_warnings(action="ignore"):
        for name, key in refused:
            # torch 2.11 and 2.12 refuse to replace a kernel that came from Python unless they are told to.
            _library(name.partition("::")[0]).impl(
                name.partition("::")[2], _raising(name, key), key, allow_override=True
            )  # type: ignore[no-untyped-call]
    return len(refused)


def lift() -> None:
    """Undo `refuse_uncovered`: every operator has torch's kernel again."""
    while _libraries:
        _libraries.popitem()[1]._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001 - else whenever it is collected
    _looked_at.clear()


def refused_keys(name: str) -> Iterable[str]:
    """Under which keys this operator has to raise; pure, but for what torch has registered."""
    namespace, base = name.partition("::")[0], base_name(name)
    if namespace in NO_ARITHMETIC:
        return
    if namespace == ATEN:
        for key in BY_LIST:
            if f"{key} {base}" not in covered() and (has_kernel(name, key) or (key == "CPU" and _computes(name, base))):
                yield key
    elif any(has_kernel(name, key) for key in ("CPU", *COMPOSITE, IMPLICIT)):
        yield "CPU"
    for key in WHOLLY:
        if has_kernel(name, key):
            yield key


def _computes(name: str, base: str) -> bool:
    """Whether an operator without a kernel for the CPU alone may compute by itself there."""
    if name.endswith("out"):  # made by torch from the operator without `out`, which it calls
        return False
    if any(has_kernel(name, key) for key in COMPOSITE):
        return True
    return base.startswith(BY_THEMSELVES) and bool(has_kernel(name, IMPLICIT))


def _library(namespace: str) -> torch.library.Library:
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    return _libraries[namespace]


def _raising(name: str, key: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        where = f" {WHERE[key]}" if key in WHERE else ""
        raise UsageError(
            f'numerics="portable" does not cover the operator {name}{where}: its bits may depend on the kind of CPU.',
            FIXES.get(key, FIX),
        )

    return refuse
