"""Schedulers that nobody passed to `run.prepare`: those of prepared optimizers are in every state all the same.

One that is made outside of `run.epochs` is known by its number, for each start makes the same ones. One that is made in a
body (a warm-up in the first epoch) is known by its place among those of bodies that still live: a start that resumes in
the body makes it again, or all of them. The constructor writes to the optimizer's groups, where a resumed run has the
rates of its state already; that is undone as soon as the scheduler has got its own part of the state.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from samebits.errors import UsageError
from samebits.rank.position.epoch_count import EpochCount
from samebits.rank.position.exact_json import encode
from samebits.rank.position.preparations import Groups, options_of

Options = list[dict[str, Any]]
"""Of each group of an optimizer, without its parameters."""


@dataclass(eq=False)
class MadeScheduler:
    """One that this process made."""

    ref: weakref.ref[LRScheduler]
    number: int
    """Among all of this process, from 1."""
    outside: int
    """Among those that were made outside of bodies, from 1; 0 in one."""
    body: tuple[int, int]
    """The loop and epoch in whose body it was made."""
    before: Options | None
    """The optimizer's options before its constructor wrote to them; None when that is undone."""
    made_with: Groups | None = None
    """The plain values that it was made with; None until somebody has looked."""
    is_odd: bool = False
    """Whether its state cannot be written."""
    progress: Any = None
    """How far it was when the last body began."""
    is_idle: bool = False
    """Whether it did nothing in a whole body."""

    @property
    def here(self) -> LRScheduler | None:
        return self.ref()


@dataclass(eq=False)
class MadeSchedulers:
    """Those of one run.

    Args:
        epochs: in which body the script is.
        held: what states hold anyway: prepared and tracked objects.
        is_prepared: whether states hold an optimizer.
    """

    epochs: EpochCount
    held: Callable[[], Iterable[Any]]
    is_prepared: Callable[[Any], bool]
    bodies: list[int] = field(default_factory=lambda: [0, 0])
    """How many bodies the run has begun, and in how many before the current one it has made a scheduler."""
    loaded: int = 0
    """The number of the last one that was made when a state was loaded."""
    _made: list[MadeScheduler] = field(default_factory=list)
    num: int = 0
    """How many this process has made, and how many of them outside of bodies."""
    _num_outside: int = 0
    _makes: bool = False
    """Whether the current body has made one."""

    def watch(self) -> MadeSchedulers:
        """Note each scheduler that is made from here on, until `remove`."""
        if LRScheduler.__new__ is not _new:
            LRScheduler.__new__ = staticmethod(_new)  # type: ignore[method-assign,assignment]
        _watching.append(self)
        return self

    def remove(self) -> None:
        """Note no more."""
        if self in _watching:
            _watching.remove(self)

    def add(self, scheduler: LRScheduler, optimizer: Optimizer) -> None:
        """One is being made, and has not written to its optimizer yet."""
        outside = 0 if self.epochs.in_body else self._num_outside + 1
        self._makes = self._makes or not outside
        self.num, self._num_outside = self.num + 1, outside or self._num_outside
        before = [
            {key: _kept(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        self._made.append(MadeScheduler(weakref.ref(scheduler), self.num, outside, self._body, before))

    @property
    def _body(self) -> tuple[int, int]:
        return self.epochs.loop, self.epochs.next

    def enter_body(self) -> None:
        """A body of `run.epochs` begins: those of earlier ones that nothing holds, or nobody steps, count no more."""
        self.bodies[0] += 1
        self.bodies[1] += self._makes
        self._makes = False
        earlier = [one for one in self._made if not one.outside and one.here is not None]
        if earlier:
            # What is in a cycle would live on, on some ranks only.
            del earlier
            gc.collect()
        self._made = [one for one in self._made if one.here is not None]
        for one in self._made:
            progress = _progress(one.here)
            # Those made outside of bodies each start makes again, so they stay.
            one.is_idle, one.progress = progress == one.progress and not one.outside, progress

    def here(self) -> list[MadeScheduler]:
        """Those that states hold, in the order in which they were made."""
        if not self._made:
            return []
        living = [(one, scheduler) for one in self._made if (scheduler := one.here) is not None]
        held = {id(one) for one in self.held()}
        for thing in (*self.held(), *(scheduler for _, scheduler in living)):
            held |= {id(one) for one in inside(thing)}
        found = []
        for one, scheduler in living:
            if id(scheduler) in held or not self.is_prepared(getattr(scheduler, "optimizer", None)):
                continue
            if one.made_with is None:
                one.made_with, one.is_odd = options_of(scheduler), _is_odd(scheduler)
            if not (one.is_odd or (one.is_idle and _progress(scheduler) == one.progress)):
                found.append(one)
        return found

    def record(self) -> list[dict[str, Any]]:
        """What a place keeps of each."""
        return [
            {
                "class": type(scheduler).__name__,
                "made_with": one.made_with,
                "outside": one.outside,
                "again": not one.outside and one.body == self._body and self.epochs.in_body,
                "state": scheduler.state_dict(),
            }
            for one in self.here()
            if (scheduler := one.here) is not None
        ]

    def counts(self, *, runs_again: bool) -> list[int]:
        """`bodies` for a state; `runs_again`: of before the current body, which a start that resumes begins once more."""
        if not self.epochs.in_body:
            return [*self.bodies]
        return [self.bodies[0] - runs_again, self.bodies[1] + (self._makes and not runs_again)]

    def undo_writes(self, optimizers: Iterable[Any]) -> None:
        """Give these optimizers the options of before the schedulers that were made since a state was loaded."""
        theirs = {id(one) for one in optimizers}
        for one in reversed(self._made):
            optimizer = getattr(one.here, "optimizer", None)
            if one.number > self.loaded and one.before is not None and id(optimizer) in theirs:
                _restore(optimizer, one.before)
                one.before = None


_watching: list[MadeSchedulers] = []
_own_new: Any = LRScheduler.__new__


# [Note: why the class is changed in `__new__`, and for good]
# `__init__` would be too late: OneCycleLR writes to the groups before it calls torch's own. And a class whose `__new__` was
# deleted again takes no arguments any more.
def _new(kind: type[LRScheduler], *args: Any, **kwargs: Any) -> LRScheduler:
    made: LRScheduler = object.__new__(kind) if _own_new is object.__new__ else _own_new(kind, *args, **kwargs)
    optimizer = _optimizer_in([*args, *kwargs.values()])
    if isinstance(optimizer, Optimizer):
        for each in _watching:
            each.add(made, optimizer)
    return made


def kept(record: Sequence[dict[str, Any]], bodies: Sequence[int], *, runs_again: bool) -> list[dict[str, Any]]:
    """What a state keeps of `MadeSchedulers.record`; `runs_again`: whether it is inside the body that made some of them."""
    if runs_again:
        return [*record]
    if bodies[0] == bodies[1] > 1:
        # Each body makes its own, and so will the next.
        return [one for one in record if not one["again"]]
    # After a first body nobody knows that.
    return [{**one, "again": one["again"] and bodies[0] == bodies[1]} for one in record]


def paired(
    saved: Sequence[Mapping[str, Any]], mine: Sequence[MadeScheduler], *, runs_again: bool
) -> tuple[list[tuple[MadeScheduler, Mapping[str, Any]]], list[str]]:
    """Which scheduler of a body gets which part of a state, and the classes of those that this start does without.

    Args:
        saved: those made in bodies, as `MadeSchedulers.record` has them.
        mine: those that this start has made in the body in which it resumes.
        runs_again: whether the state was saved inside that body, so that it makes again what it had made.

    Raises:
        UsageError: when it makes others than that.
    """
    again = [one for one in saved if one["again"]]
    if mine and again and not runs_again:
        raise UsageError(
            f"The script makes a {again[0]['class']} in the body of an epoch, as it did in the first one, and a state between "
            "the two cannot say whether this is another one.",
            "Make it before the loop.",
        )
    for wanted in (saved, again):
        if len(wanted) == len(mine) and all(map(_is_alike, wanted, mine)):
            left = [one["class"] for one in saved if not any(one is other for other in wanted)]
            return list(zip(mine, wanted, strict=True)), left
    if runs_again and again:
        names = ", ".join(one["class"] for one in again)
        raise UsageError(
            f"The state has a scheduler ({names}) that the body of its epoch had made, and this start has made "
            f"{', '.join(type(one.here).__name__ for one in mine) or 'none'} there before its first step.",
            "Make it under the same condition after a resume too, or before the loop.",
        )
    return [], [one["class"] for one in saved]


def _is_alike(saved: Mapping[str, Any], mine: MadeScheduler) -> bool:
    return (saved["class"], saved["made_with"]) == (type(mine.here).__name__, mine.made_with)


def _optimizer_in(given: Sequence[Any]) -> Any:
    """The optimizer that a constructor was given, or that of the schedulers which it was (ChainedScheduler)."""
    listed = [one for value in given for one in (value if isinstance(value, (list, tuple)) else [value])]
    found = [one if isinstance(one, Optimizer) else getattr(one, "optimizer", None) for one in listed]
    return next((one for one in found if isinstance(one, Optimizer)), None)


def inside(thing: Any) -> list[LRScheduler]:
    """The schedulers that one consists of, whose states are in its own."""
    values = [*vars(thing).values()] if hasattr(thing, "__dict__") else []
    listed = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    return [one for one in listed if isinstance(one, LRScheduler) and one is not thing]


def _progress(scheduler: Any) -> Any:
    return [(getattr(one, "last_epoch", 0), getattr(one, "_step_count", 0)) for one in (scheduler, *inside(scheduler))]


def _is_odd(scheduler: LRScheduler) -> bool:
    try:
        state = scheduler.state_dict()
        copy.deepcopy(state)
        encode(state, "scheduler", lambda path, _: path)
    except Exception:  # noqa: BLE001 - a class of the script may hold anything
        return True
    return False


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _restore(optimizer: Any, options: Options) -> None:
    for group, before in zip(optimizer.param_groups, options, strict=False):
        for key in group.keys() - before.keys() - {"params"}:
            del group[key]
        for key, value in before.items():
            if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
                group[key].copy_(value)
            else:
                group[key] = value
