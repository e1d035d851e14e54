"""What a script sees of an optimizer's state while ranks hold shares of it, as long as it does not look: nothing.

As soon as it looks, copies, saves or writes, in whatever way, all of it is there, whole and this rank's own, and stays: an
ordinary dictionary by parameters, as any optimizer has. See `zero1.giving_way` for what follows from that.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

Entry = dict[str, Any]
"""The state of one parameter."""


class SeenState(defaultdict[Any, Entry]):
    """An ordinary state; in a copy or a file it is torch's own dictionary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (dict,), None, None, iter(self.items())


class ShownState(SeenState):
    """A state that nobody has looked at yet.

    Args:
        here: returns what this rank holds.
        whole: returns all of it, of which nothing else may hold a part; called once, before the first look.
    """

    def __init__(self, here: Callable[[], Mapping[Any, Entry]], whole: Callable[[], Mapping[Any, Entry]]) -> None:
        super().__init__(dict)
        self._here, self._whole = here, whole

    def fill(self, whole: Mapping[Any, Entry]) -> None:
        """Become an ordinary state."""
        del self._here, self._whole
        self.__class__ = SeenState  # type: ignore[assignment]  # from here on every method is the dictionary's own
        self.update(whole)


def _looking(name: str) -> Callable[..., Any]:
    inner = getattr(SeenState, name)

    @functools.wraps(inner)
    def method(self: ShownState, *args: Any, **kwargs: Any) -> Any:
        if type(self) is ShownState:
            self.fill(self._whole())
        return inner(self, *args, **kwargs)

    return method


_LOOKS = (
    *(
        "__getitem__",
        "__setitem__",
        "__delitem__",
        "__contains__",
        "__len__",
        "__iter__",
        "__reversed__",
        "__eq__",
        "__ne__",
    ),
    *(
        "__or__",
        "__ror__",
        "__ior__",
        "__repr__",
        "__copy__",
        "__reduce__",
        "copy",
        "get",
        "pop",
        "popitem",
        "setdefault",
    ),
    *("update", "clear", "keys", "values", "items"),
)
"""Every method of a dictionary that reads or writes; a test compares."""

for _name in _LOOKS:
    setattr(ShownState, _name, _looking(_name))


def is_hidden(optimizer: Optimizer) -> bool:
    """Whether no script can have looked at the optimizer's state, so none has written to it."""
    return type(optimizer.state) is ShownState


def state_here(optimizer: Optimizer) -> Mapping[Any, Entry]:
    """What this rank holds of the optimizer's state, for those who do not want to see the rest."""
    state: Any = optimizer.state
    return state._here() if type(state) is ShownState else state  # noqa: SLF001 - one file, one idea
