"""What a data set, its transforms and its collate function keep from one lane to the next: other ranks and workers keep another.

Whoever fetches looks at them around its first lanes, by the rules of `rank.look`. A generator of their own that a lane has
changed is named, and what else it has changed of the user's own, but for the first lane: that may open files.

Runs in: the loader's workers, or the rank where it has none.
"""

from __future__ import annotations

import dis
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from samebits.rank.caller import short
from samebits.rank.look.frames import is_a_class_of_the_users, is_the_users
from samebits.rank.look.reading import Reader, classes_of, dictionary_of
from samebits.rank.look.verdict import Named

LANES, LOOK_S, MOST_ITEMS = 3, 0.03, 64
"""So many lanes are looked at, with so much of the thread's time for a look; longer lists hold data."""
GENERATORS = frozenset({random.Random, np.random.Generator, np.random.RandomState, torch.Generator})
_KEYED = frozenset(map(id, (torch.default_generator, random._inst, np.random.mtrand._rand)))  # noqa: SLF001
"""Each lane sets these."""
_FETCHING = ("__getitem__", "__getitems__", "__call__", "forward")
Root = tuple[str, Any, Any, bool]
"""A path such as `Images.transform.rng`, its value, the class or function whose source names it, and whether that is the user's."""


class _Reader(Reader):
    """Notes the generators in what it reads."""

    def __init__(self, until_s: float) -> None:
        super().__init__(_KEYED, time.thread_time, until_s)
        self.generators: dict[int, bytes] = {}

    def _of(self, value: Any, depth: int) -> bytes:
        found = super()._of(value, depth)
        if type(value) in GENERATORS and id(value) not in _KEYED:
            self.generators[id(value)] = found
        return found


class OwnState:
    """The looks of one process. Nothing here raises, or calls what is not ours.

    Args:
        dataset: the user's.
        collate_fn: the user's, or torch's.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> None:
        name = collate_fn.__name__ if type(collate_fn) is FunctionType else type(collate_fn).__name__
        self._roots = [(type(dataset).__name__, dataset), (name, collate_fn)]
        self._lanes, self._before = 0, {}  # type: int, dict[str, tuple[Any, Any, Root]]
        self.found: dict[str, Named] = {}

    def enter_lane(self) -> None:
        """A lane is about to be fetched."""
        self._lanes += 1
        self._before = self._look() if self._lanes <= LANES else {}

    def leave_lane(self) -> bool:
        """It is fetched; whether something new was found."""
        num_found = len(self.found)
        after = self._look() if self._lanes <= LANES else {}
        for path, (bits, generators, (_, value, owner, is_users)) in after.items():
            bits_before, generators_before, _ = self._before.get(path, (None, set(), None))
            is_drawn = not generators <= generators_before and not _seeds(owner)
            is_kept = self._lanes > 1 and None not in (bits, bits_before) and bits != bits_before and not generators
            if is_drawn or (is_kept and is_users):
                name = f"the generator in {path}" if is_drawn and type(value) not in GENERATORS else path
                self.found[path] = Named(name, _where(owner, path) if is_users else "")
        return len(self.found) > num_found

    def _look(self) -> dict[str, tuple[bytes | None, set[tuple[int, bytes]], Root]]:
        """By path what was read, if all of it was, and the generators in it; nothing, and no more, where the time was too short."""
        until_s = time.thread_time() + LOOK_S
        reader, seen = _Reader(until_s), set[int]()
        found: dict[str, tuple[bytes | None, set[tuple[int, bytes]], Root]] = {}
        with suppress(Exception):
            for root in (one for name, value in self._roots for one in _roots(name, value, None, seen)):
                reader.generators = {}
                bits, is_whole = reader.read(root[1])
                found.setdefault(root[0], (bits if is_whole else None, {*reader.generators.items()}, root))
                if time.thread_time() > until_s:
                    raise TimeoutError
            return found
        self._lanes = LANES + 1
        return {}


def _roots(path: str, value: Any, owner: Any, seen: set[int]) -> Iterator[Root]:
    """What is read as a whole: of objects each attribute, of functions what they read of their modules too."""
    kind = type(value)
    is_plain = kind in GENERATORS or issubclass(kind, (FunctionType, torch.Tensor))
    attributes = None if is_plain else dictionary_of(value)
    if id(value) in seen or issubclass(kind, (type, ModuleType)) or kind.__module__.startswith("samebits."):
        return
    if kind is FunctionType and is_the_users(value.__code__.co_filename):
        seen.add(id(value))
        for name, one in _read_globals(value):
            yield from _roots(name, one, value, seen)
        yield path, value, value, True
    elif attributes or is_a_class_of_the_users(kind):
        seen.add(id(value))
        of_bases = [item for base in filter(is_a_class_of_the_users, classes_of(kind)) for item in vars(base).items()]
        own = [item for item in of_bases if type(item[1]) is FunctionType or item[0][:2] != "__"]
        for key, one in (*(attributes or {}).items(), *own):
            yield from _roots(f"{path}.{key}", one, kind, seen)
    elif kind in (list, tuple) and len(value) <= MOST_ITEMS and any(dictionary_of(one) for one in value):
        for place, one in enumerate(value):
            yield from _roots(f"{path}[{place}]", one, owner, seen)
    else:
        # A library's own memory is its own affair; its generators are not.
        yield path, value, owner, type(owner) is FunctionType or (owner is not None and is_a_class_of_the_users(owner))


def _read_globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function's names are in its module, and in modules of the user's that it names."""
    names, variables = _names(function.__code__), function.__globals__
    modules = [vars(one) for name in names if type(one := variables.get(name)) is ModuleType]
    for scope in (variables, *(one for one in modules if is_the_users(one.get("__file__") or ""))):
        yield from ((name, scope[name]) for name in names & scope.keys())


def _names(code: CodeType) -> set[str]:
    """The names that a function reads, and those in it."""
    return {*code.co_names, *(name for one in code.co_consts if type(one) is CodeType for name in _names(one))}


def _functions(owner: Any) -> list[FunctionType]:
    """The function, or those of the class but `__init__`."""
    of_class = isinstance(owner, type)
    found = [one for base in classes_of(owner) for one in vars(base).values()] if of_class else [owner]
    return [one for one in found if type(one) is FunctionType and one.__name__ != "__init__"]


def _seeds(owner: Any) -> bool:
    """Whether what fetches seeds a generator, as from the index."""
    fetching = [one for one in _functions(owner) if one is owner or one.__name__ in _FETCHING]
    return any(not {"seed", "manual_seed"}.isdisjoint(one.__code__.co_names) for one in fetching)


def _where(owner: Any, path: str) -> str:
    """The line that names the last word of the path; else where the function begins."""
    word = path.rpartition(".")[2].partition("[")[0]
    codes = [one.__code__ for one in _functions(owner)]
    for code in codes:
        for one in dis.get_instructions(code):
            if one.argval == word and one.positions is not None:
                return short(code.co_filename, one.positions.lineno or 0)
    return short(codes[0].co_filename, codes[0].co_firstlineno) if codes else ""
