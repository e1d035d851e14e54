"""Frozen dataclasses as JSON data, and back by their type hints: what the processes of a run tell each other.

What comes back was written by another process, perhaps of another version: what does not fit a hint is refused with its place,
never taken as it is.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Reader = Callable[[Any, str], Any]
"""Turns JSON data into a value; the second argument says where it stands."""


def plain(record: Any) -> dict[str, Any]:
    """A dataclass of plain fields as JSON data: paths as text, the dataclasses in it too."""
    return asdict(record, dict_factory=lambda items: {key: _plain(value) for key, value in items})


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value


def restored(kind: type[Record], data: Any, place: str = "") -> Record:
    """The inverse of `plain`. A field that is missing has its default.

    Args:
        kind: the dataclass. Its hints may be int, float, str, bool, None, Any, enums, paths, dataclasses, and sequences,
            mappings and unions of these.
        data: from `json.loads`.
        place: where it stands, for the error.

    Raises:
        ValueError: where a field is missing or unknown, or its value does not fit.
    """
    place = place or kind.__name__
    readers, needed = _readers(kind)  # type: ignore[arg-type]
    if not isinstance(data, Mapping) or not needed <= data.keys() <= readers.keys():
        raise ValueError(f"{place} needs {', '.join(sorted(needed))}, but is {data!r:.200}")
    return kind(**{name: readers[name](value, f"{place}.{name}") for name, value in data.items()})


@cache
def _readers(kind: type[Any]) -> tuple[dict[str, Reader], frozenset[str]]:
    """How to read each field, and those that must be there."""
    hints = get_type_hints(kind)
    own = [one for one in fields(kind) if one.init]
    needed = [one.name for one in own if one.default is MISSING and one.default_factory is MISSING]
    return {one.name: _reader(hints[one.name]) for one in own}, frozenset(needed)


def _reader(hint: Any) -> Reader:  # noqa: PLR0911 - one for each kind of hint
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, _: value
    if origin in (Union, types.UnionType):
        return _one_of([_reader(one) for one in inner])
    if origin is tuple and inner[1:] != (...,):
        return _row([_reader(one) for one in inner])
    if origin in (tuple, list, Sequence):
        return _several(list if origin is list else tuple, _reader(inner[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_reader(inner[1]))
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value, place: restored(hint, value, place)
    return _single(hint)


def _single(kind: Any) -> Reader:
    made_of = str if issubclass(kind, PurePath) else (str, int) if issubclass(kind, Enum) else ()
    # JSON has no difference between 2 and 2.0.
    fits = str if issubclass(kind, PurePath) else (int, float) if kind is float else kind

    def read(value: Any, place: str) -> Any:
        if isinstance(value, made_of) and not isinstance(value, bool):
            return kind(value)
        if not isinstance(value, fits) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"{place} must be {kind.__name__}, but is {value!r:.200}")
        return value

    return read


def _one_of(readers: list[Reader]) -> Reader:
    def read(value: Any, place: str) -> Any:
        problem: ValueError | None = None
        for reader in readers:
            try:
                return reader(value, place)
            except ValueError as error:
                problem = problem or error
        raise problem or ValueError(place)

    return read


def _row(readers: list[Reader]) -> Reader:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise ValueError(f"{place} must have {len(readers)} entries, but is {value!r:.200}")
        return tuple(reader(one, place) for reader, one in zip(readers, value, strict=True))

    return read


def _several(kind: type[Any], reader: Reader) -> Reader:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{place} must be a list, but is {value!r:.200}")  # noqa: TRY004 - callers handle one error
        return kind(reader(one, place) for one in value)

    return read


def _mapping(reader: Reader) -> Reader:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"{place} must be an object, but is {value!r:.200}")  # noqa: TRY004 - as above
        return {key: reader(one, f"{place}.{key}") for key, one in value.items()}

    return read
