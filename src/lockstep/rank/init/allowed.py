"""Operators that may compute without a deterministic form, while all others must have one.

torch has one switch for a whole process. So each kernel of an allowed operator is wrapped, for the CPU and for GPUs: the
switch is off while it runs. Another thread's kernels would see it off, too; autograd's threads take turns as long as a
process has one device.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from lockstep.errors import UsageError
from lockstep.machine.torch_private import has_kernel, operator_names

KEYS = ("CPU", "CUDA")
"""torch's names for the kinds of kernels that are wrapped. `torch.compile` asks others for shapes; they raise as ever."""
NAMESPACE = "aten"

_wrapped: list[torch.library.Library] = []
"""What is wrapped in this process; it lasts as long as the library object."""


def allow(operators: Sequence[str]) -> None:
    """Let these operators, and no others, run without a deterministic form. Call after `set_numerics`.

    Args:
        operators: names as in torch.ops.aten, without what is behind a dot. A name stands for all that begin with it at
            a "_": "nll_loss2d" for its forward and its backward.

    Raises:
        UsageError: when torch has no such operator.
    """
    while _wrapped:
        _wrapped.pop()._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001 - else whenever it is collected
    if not operators:
        return
    known = [name for name in operator_names() if name.startswith(f"{NAMESPACE}::")]
    library = torch.library.Library(NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]
    _wrapped.append(library)
    for name in {overload: None for operator in operators for overload in overloads(operator, known)}:
        for key in KEYS:
            if has_kernel(name, key):
                _wrap(library, name, key)


def refuse_several_devices(operators: Sequence[str]) -> None:
    """Raise `UsageError` if any operator is allowed, in a process that computes on several devices.

    Autograd has a thread for each; a kernel of another one could run while the switch is off, and nobody would know.
    """
    if operators:
        raise UsageError(
            f"`allow` ({', '.join(operators)}) needs one device in each process, but the model is on several here.",
            "Leave the model on one device, or start as many ranks as GPUs.",
        )


def overloads(operator: str, known: Iterable[str]) -> list[str]:
    """All of an operator's overloads, forward and backward, among torch's.

    Args:
        operator: as a person names it.
        known: all operators, as "aten::cumsum.out".

    Raises:
        UsageError: when there is none, with what is spelled alike.
    """
    wanted = operator.removeprefix(f"{NAMESPACE}::").strip("_")
    bare = {name: _bare(name) for name in known}
    found = [name for name, word in bare.items() if word == wanted or word.startswith(f"{wanted}_")]
    if wanted and found:
        return found
    alike = difflib.get_close_matches(wanted, sorted({*bare.values()}), n=1)
    raise UsageError(
        f"`allow` names {operator!r}, but torch has no such operator.",
        f"Try {alike[0]}." if alike else "Take the name that the error about it says.",
    )


def _bare(name: str) -> str:
    return name.partition("::")[2].partition(".")[0].strip("_")


def _wrap(library: torch.library.Library, name: str, key: str) -> None:
    kernel = torch.library.get_kernel(name, key)
    with warnings.catch_warnings(action="ignore"):  # that the kernel is replaced is what we want
        bare = name.partition("::")[2]
        library.impl(bare, _freely(kernel), key, with_keyset=True)  # type: ignore[no-untyped-call]


def _freely(kernel: Any) -> Callable[..., Any]:
    def run(keys: Any, *args: Any, **named: Any) -> Any:
        before = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("default")
        try:
            return kernel.call_boxed(keys, *args, **named)
        finally:
            torch.set_deterministic_debug_mode(before)

    return run
