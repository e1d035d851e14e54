"""`dist.new_group` over a default group of this backend: all ranks say that they enter it before any goes on.

torch requires every rank to enter it, member or not, but does not notice a rank that does something else: members wait
for each other in a store, and the others go on. Here it begins as an operation of the default group, so a rank that
calls another one is found as usual.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist

from lockstep.machine import torch_private
from lockstep.rank.process_group.membership import Membership

_MARK = "__lockstep_agreed__"
_NEAR = 6
"""Frames between torch's public function and the one that makes groups, torch's logging of calls included."""


def agree_on_new_groups() -> None:
    """Put that in front of torch's function that makes every new group; a second call changes nothing."""
    original = torch_private.if_there("make_group")  # what new_group, device meshes and functional collectives call
    if original is not None and not hasattr(original, _MARK):
        torch_private.replace("make_group", _agreed(original))


def _agreed(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        callers = _who_enter()
        if isinstance(callers, Membership):
            given = signature.bind(*args, **kwargs).arguments
            ranks = given.get("ranks")
            ranks = _readable(range(callers.size()) if ranks is None else ranks)
            if not given.get("use_local_synchronization"):
                callers.exchange.agree_on_group(ranks if given.get("sort_ranks") is False else sorted(ranks))
        return original(*args, **kwargs)

    setattr(new_group, _MARK, True)
    return new_group


def _who_enter() -> Any:
    """The group whose ranks call: the default one, or the one that `new_subgroups(group=)` cuts, found in its frame."""
    frame = sys._getframe(2)  # noqa: SLF001 - as inspect.currentframe
    for _ in range(_NEAR):
        if (
            frame.f_code.co_name == "new_subgroups"
            and frame.f_globals.get("__name__") == dist.distributed_c10d.__name__
        ):
            return frame.f_locals.get("group") or dist.group.WORLD
        if frame.f_back is None:
            break
        frame = frame.f_back
    return dist.group.WORLD


def _readable(ranks: Iterable[Any]) -> list[int]:
    """The ranks; none if torch will refuse them: whether ranks agree first must not depend on that."""
    try:
        numbers = [operator.index(rank) for rank in ranks]
    except TypeError:
        return []
    return numbers if all(number >= 0 for number in numbers) else []
