"""`run.state`: plain values of the script that belong to every state, as attributes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from samebits.errors import UsageError
from samebits.rank.position.exact_json import encode
from samebits.rank.position.preparations import MadeOptions


class KeptValues:
    """Values by name: `run.state.best = 0.91`. Its `vars` are the values.

    Kept: numbers, texts, switches, None, tensors, and tuples, lists, sets and dictionaries of them. What is assigned
    before a state is loaded is a first value, which the state's own replaces; `made` gets it, until the loop `has_begun`.
    """

    __slots__ = ("__dict__", "_has_begun", "_in_lane", "_loaded", "_made")
    _in_lane: Callable[[], bool]
    _has_begun: Callable[[], bool]
    _made: MadeOptions
    _loaded: frozenset[str]

    def __init__(self, has_begun: Callable[[], bool], made: MadeOptions, in_lane: Callable[[], bool]) -> None:
        # Past `__setattr__` below, which takes values of the script only.
        object.__setattr__(self, "_has_begun", has_begun)
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_loaded", frozenset())
        object.__setattr__(self, "_in_lane", in_lane)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise UsageError(
                f"run.state.{name} begins with an underscore, and so is not saved.", "Use a name without one."
            )
        if self._in_lane():
            raise UsageError(
                f"run.state.{name} was assigned inside a lane: each rank would keep what its own lanes assign.",
                f"Collect in the lanes and assign behind them: run.state.{name} = run.lane_sum(made), or run.lane_cat(made).",
            )
        if name in self._loaded and not self._has_begun():
            raise UsageError(
                f"run.state.{name} was loaded by run.load_state, and an assignment before the first epoch would lose it.",
                "Give it its first value before run.load_state.",
            )
        try:
            encode(value, f"run.state.{name}", lambda path, _: path)
        except UsageError as error:
            raise UsageError(
                error.problem,
                "Keep what it is made of (numbers, texts, lists, dictionaries, tensors), or name an object that has a "
                f"state_dict: run.track({name}=...).",
            ) from None
        if not self._has_begun():
            self._made.add_value(name, value)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:  # only for what is not there
        raise AttributeError(
            f"run.state.{name} has no value. Assign a first one before the loop: run.state.{name} = 0."
        )

    def __repr__(self) -> str:
        return f"run.state({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def restore(values: KeptValues, saved: Mapping[str, Any]) -> None:
    """Take the values of a state; others stay. Lists, dictionaries and tensors that are there are filled in place."""
    # In place, because the script may hold the list or tensor in a variable of its own.
    for name, value in copy.deepcopy(dict(saved)).items():
        own = vars(values).get(name)
        if type(own) is list and type(value) is list:
            own[:] = value
        elif type(own) is dict and type(value) is dict:
            own.clear()
            own.update(value)
        elif (
            isinstance(own, Tensor)
            and isinstance(value, Tensor)
            and (own.shape, own.dtype) == (value.shape, value.dtype)
        ):
            own.detach().copy_(value)
        else:
            vars(values)[name] = value
    object.__setattr__(values, "_loaded", frozenset(saved))
