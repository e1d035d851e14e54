"""Who is asked before the script exchanges anything with other ranks, or wants to know whether it could.

Every collective of torch.distributed asks `_rank_not_in_group` first, over any back end, under whatever name a script has
imported it, and before it asks for a group: so a process without one is seen too. There a script mostly asks first
whether there is a group (`is_initialized`), and exchanges nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from samebits.machine import torch_private

_ASKED = "_rank_not_in_group"
_MARK = "__samebits_asked__"


def _nobody(_: str) -> None:
    """Refuse nothing."""


class Questions:
    """What is asked; the process has one, `QUESTIONS`, and a run sets it."""

    before_call: Callable[[str], None] = staticmethod(_nobody)
    """Gets the name of a collective before it begins."""
    before_answer: Callable[[], None] = staticmethod(lambda: None)
    """Called where somebody asks whether there is a default group, and there is none."""


QUESTIONS = Questions()


def _calls(function: Any, names: set[str]) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code is not None and not names.isdisjoint(code.co_names)


@functools.cache
def collectives() -> frozenset[str]:
    """The names of torch.distributed's collectives, those too that hand on to another one."""
    first = {name for name, one in vars(c10d).items() if _calls(one, {_ASKED})}
    of_groups = {name for name in vars(dist.ProcessGroup) if name.startswith(("all", "reduce"))}
    names = first | of_groups | {name for name, one in vars(c10d).items() if _calls(one, first)}
    return frozenset(name for name in names if not name.startswith(("get_", "_", "new_", "init_")))


def listen() -> None:
    """Ask from now on; a second call changes nothing."""
    original: Any = torch_private.if_there("rank_not_in_group")
    if original is None or hasattr(original, _MARK):
        return
    names = collectives()

    def asked(*args: Any) -> Any:
        if (name := sys._getframe(1).f_code.co_name) in names:  # noqa: SLF001 - as inspect.currentframe
            QUESTIONS.before_call(name)
        return original(*args)

    setattr(asked, _MARK, True)
    torch_private.replace("rank_not_in_group", asked)
    _listen_to_questions()


def _listen_to_questions() -> None:
    original = c10d.is_initialized

    @functools.wraps(original)
    def is_initialized() -> bool:
        there = original()
        # A compiler that watches asks once for many calls, and cannot follow who asks.
        if not there and not torch.compiler.is_compiling():
            QUESTIONS.before_answer()
        return there

    for module in (c10d, dist):
        module.is_initialized = is_initialized  # type: ignore[attr-defined]
