"""Read a value without running anybody's code: the same bytes twice mean that nothing in it has changed.

It goes by the exact type: plain values, containers and generators of Python, NumPy and torch; instance dictionaries and slots;
the bits of CPU tensors and arrays up to 1 MiB, and of every other tensor its identity, version and shape. What is left, or comes
after the time is over, is unread, which is not "the same". Nothing is kept and nothing raises.
"""

from __future__ import annotations

import array
import collections
import ctypes
import datetime as dt
import decimal
import fractions
import functools
import hashlib
import itertools
import marshal
import pathlib
import random
import re
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MOST_BYTES = 1 << 20
"""Of a tensor or an array that is read by its bits."""
MOST_ITEMS = 20_000
"""Of a container of plain values; of any other a tenth. Longer ones hold data."""
MOST_DEEP = 60
_NUMBERED: dict[int, tuple[weakref.ref[Tensor], int]] = {}
_NUMBERS = itertools.count()
"""Of large tensors."""

_BY_REPR = frozenset({
    range, slice, type(NotImplemented), dt.date, dt.datetime, dt.time, dt.timedelta, decimal.Decimal, fractions.Fraction,
    pathlib.PosixPath, pathlib.PurePosixPath, torch.Size, uuid.UUID,
})  # fmt: skip
"""Plain values that show themselves whole."""
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(...)}) | _BY_REPR
_IMMUTABLE = frozenset({
    re.Pattern, torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype, np.ufunc, types.CodeType,
    types.BuiltinFunctionType, types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.GenericAlias, types.UnionType,
})  # fmt: skip
"""Instances of these are told apart by their identity; what is called has no state but what it is bound to."""
_NO_VALUES = frozenset({
    type(threading.Lock()), type(threading.RLock()), weakref.ReferenceType, types.ModuleType, types.FrameType, types.TracebackType,
})  # fmt: skip
"""What nothing is computed from."""
_SEQUENCES = frozenset({list, tuple, collections.deque})
_SETS = frozenset({set, frozenset})
_MAPPINGS = frozenset({dict, collections.OrderedDict, collections.defaultdict, collections.Counter})
_TENSORS = frozenset({Tensor, nn.Parameter, nn.Buffer})
_DICT = type.__dict__["__dict__"]
_SLOT = types.MemberDescriptorType


class Reader:
    """Reads in one look; what several names share is read once.

    Args:
        known: identities of objects that are left out: every state holds them, or no lane may write to them.
        clock: seconds, rising.
        until_s: by that clock, when the time is over.
    """

    def __init__(self, known: Collection[int], clock: Callable[[], float], until_s: float) -> None:
        self._known, self._clock, self._until_s = known, clock, until_s
        self._read: dict[int, bytes] = {}
        """By identity, of what is read; empty while it is being read."""
        self._unread: set[int] = set()
        """Those of them with an unread part."""
        self._made: list[Any] = []
        self._is_whole = True

    def read(self, value: Any) -> tuple[bytes, bool]:
        """Sixteen bytes that change where something in the value changes, and whether all of it was read."""
        self._is_whole = True
        try:
            found = hashlib.blake2b(self._of(value, 0), digest_size=16).digest()
        except Exception:  # noqa: BLE001 - another thread may change what is being read; then it was not read
            return b"", False
        return found, self._is_whole

    def _of(self, value: Any, depth: int) -> bytes:
        kind = type(value)
        if kind in _ATOMS:
            return self._atom(value, kind)
        if kind in _NO_VALUES or id(value) in self._known:
            return b"-%d" % id(value)
        if kind in _IMMUTABLE:
            owner = value.__self__ if kind is types.BuiltinFunctionType else None
            return b"%d" % id(value) if owner is None else b"%d" % id(type(owner)) + self._of(owner, depth + 1)
        if (before := self._read.get(id(value))) is not None:
            self._is_whole = self._is_whole and id(value) not in self._unread
            return before
        if depth > MOST_DEEP or self._clock() > self._until_s:
            return self._not(value)
        self._read[id(value)] = b""
        was_whole, self._is_whole = self._is_whole, True
        try:
            read = hashlib.blake2b(self._parts(value, kind, depth + 1), digest_size=16)
            self._read[id(value)] = found = read.digest()
        except BaseException:
            self._unread.add(id(value))
            raise
        if not self._is_whole:
            self._unread.add(id(value))
        self._is_whole = self._is_whole and was_whole
        return found

    def _atom(self, value: Any, kind: type) -> bytes:
        if kind in _BY_REPR:
            return repr((kind.__name__, value)).encode()
        if (kind is str or kind is bytes) and len(value) > MOST_BYTES:
            return self._not(value)
        return marshal.dumps(value, 2)  # not -0.0 for 0.0, nor True for 1

    def _not(self, value: Any) -> bytes:
        self._is_whole = False
        return b"?%d" % id(value)

    def _parts(self, value: Any, kind: type, depth: int) -> bytes:
        if kind in _TENSORS:
            # What the script hangs on it, and a gradient that it keeps.
            more = [one for one in (dictionary_of(value), value.grad if value.is_leaf else None) if one is not None]
            return self._tensor(value) + self._all(more, depth)
        if kind is np.ndarray:
            return self._array(value)
        if kind in _CONTAINERS:
            return self._container(value, kind, depth)
        if (parts_of := _PARTS.get(kind)) is not None:
            return self._all(self._held(parts_of(value)), depth)
        is_bytes = kind is bytearray or kind is array.array or issubclass(kind, np.generic)
        if is_bytes or kind is torch.Generator or issubclass(kind, type):
            return self._one(value, kind)
        return self._instance(value, kind, depth)

    def _one(self, value: Any, kind: type) -> bytes:
        """A class, torch's generator, or bytes."""
        if issubclass(kind, type):
            return b"%d" % id(value)
        if kind is torch.Generator:
            return _generator(value)
        found = memoryview(value) if kind is bytearray else value
        return found.tobytes() if len(memoryview(found)) <= MOST_BYTES else self._not(value)

    def _held(self, made: list[Any]) -> list[Any]:
        # What is made for the look lives as long as it: another object would get its identity.
        self._made.append(made)
        return made

    def _all(self, values: Iterable[Any], depth: int) -> bytes:
        return b"|".join([self._of(one, depth) for one in values])

    def _container(self, value: Any, kind: type, depth: int) -> bytes:
        length = len(value)
        head = b"%d %d|" % (id(kind), length)
        if kind in (list, tuple, dict, set, frozenset) and length <= MOST_ITEMS and (plain := _plain(value, kind)):
            return head + plain
        if length > MOST_ITEMS // 10:
            return head + self._not(value)
        if kind in _MAPPINGS:
            items = list(dict.items(value))
            return head + self._all([one for item in items for one in item], depth)
        found = [self._of(one, depth) for one in (value if kind is tuple else value.copy())]
        return head + b"|".join(sorted(found) if kind in _SETS else found)

    def _tensor(self, value: Tensor) -> bytes:
        """Its bits where they are few and in reach, without a kernel; else what changes with a write that torch counts."""
        head = [tuple(value.shape), str(value.dtype), str(value.device)]
        if value.device.type == "cpu" and value.layout is torch.strided:
            storage = value.untyped_storage()
            if (size := storage.nbytes()) <= MOST_BYTES:
                words = repr([*head, value.storage_offset(), value.stride()]).encode()
                return words + (ctypes.string_at(storage.data_ptr(), size) if size else b"")
        return repr([_number_of(value), *head, None if value.is_inference() else value._version]).encode()  # noqa: SLF001

    def _array(self, value: np.ndarray[Any, Any]) -> bytes:
        head = repr((value.dtype.str, value.shape)).encode()
        if value.dtype.hasobject:
            is_short = value.size <= MOST_ITEMS // 10
            return head + (self._of(self._held(value.tolist()), 1) if is_short else self._not(value))
        return head + (value.tobytes() if value.nbytes <= MOST_BYTES else self._not(value))

    def _instance(self, value: Any, kind: type, depth: int) -> bytes:
        """Of a class in Python: its dictionary and slots. One in C may have more, which nobody sees."""
        module = _DICT.__get__(kind).get("__module__")
        # A tokenizer made in Rust has a vocabulary and settings of how batches are padded. What is ours a state holds.
        if type(module) is str and (module == "tokenizers" or module.startswith("samebits.")):
            return b"%d" % id(kind)
        found, is_seen = [b"%d" % id(kind)], False
        for one in classes_of(kind):
            own = _DICT.__get__(one)
            if has_state_in_c(one):
                if one in _MAPPINGS or one in _SEQUENCES or one in _SETS or one is types.SimpleNamespace:
                    found.append(self._base(value, one, depth))
                else:
                    return self._not(value)
            for name in [name for name, slot in own.items() if type(slot) is _SLOT]:
                is_seen = True
                try:
                    found.append(self._of(own[name].__get__(value), depth))
                except AttributeError:
                    found.append(b"unset")
        if (attributes := dictionary_of(value)) is not None:
            return b"|".join([*found, self._all([one for item in list(attributes.items()) for one in item], depth)])
        # Without both it has its state somewhere else, as what a library makes in C does.
        return b"|".join(found) if is_seen else self._not(value)

    def _base(self, value: Any, base: type, depth: int) -> bytes:
        """What an instance of a subclass of a container holds as such, past what the subclass makes of it."""
        if base is types.SimpleNamespace:
            return b""
        items = [one for item in dict.items(value) for one in item] if base in _MAPPINGS else base.__iter__(value)  # type: ignore[attr-defined]
        parts = list(itertools.islice(items, MOST_ITEMS // 10))
        return self._all(parts, depth) if len(parts) < MOST_ITEMS // 10 else self._not(value)


GENERATORS = frozenset({torch.Generator, random.Random, np.random.Generator, np.random.RandomState})
_CONTAINERS = _SEQUENCES | _SETS | _MAPPINGS
_PARTS: dict[type, Callable[[Any], list[Any]]] = {
    random.Random: lambda one: [one.getstate()],
    np.random.Generator: lambda one: [one.bit_generator.state],
    np.random.RandomState: lambda one: [one.get_state(legacy=False)],
    types.FunctionType: lambda one: [
        [contents_of(cell) for cell in one.__closure__ or ()], one.__defaults__, one.__kwdefaults__, one.__dict__, one.__code__,
    ],
    types.MethodType: lambda one: [one.__self__, one.__func__],
    functools.partial: lambda one: [one.func, one.args, one.keywords],
    types.CellType: lambda one: [contents_of(one)],
    property: lambda one: [one.fget],
    staticmethod: lambda one: [one.__func__],
    classmethod: lambda one: [one.__func__],
}  # fmt: skip
"""Of what is no container: what it is made of."""


def contained_in(value: Any, most: int) -> list[Any] | None:
    """The first parts of what is exactly one of Python's containers, of a mapping the values; None of anything else."""
    parts = dict.values(value) if type(value) in _MAPPINGS else value
    return list(itertools.islice(parts, most)) if type(value) in _CONTAINERS else None


_HEAP = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: classes that Python code made, and those of newer C extensions."""


def has_state_in_c(kind: type) -> bool:
    """Whether instances have what neither dictionary nor slots show: the class, without its bases, is no class of Python's."""
    base = _of_class("__base__", kind)
    if base is None or kind is BaseException or kind is Exception:
        return False
    slots = sum(type(one) is _SLOT for one in _DICT.__get__(kind).values())
    # Beside its slots a class of Python's has at most the places of a dictionary and of weak references.
    size = _of_class("__basicsize__", kind) - _of_class("__basicsize__", base)
    return not _of_class("__flags__", kind) & _HEAP or size > 8 * (slots + 2)


def _of_class(name: str, kind: type) -> Any:
    """A fact of a class, past what its metaclass makes of attributes."""
    return type.__dict__[name].__get__(kind)


def classes_of(kind: type) -> tuple[type, ...]:
    """The class and its bases."""
    return _of_class("__mro__", kind)  # type: ignore[no-any-return]


def has_more(kind: type) -> bool:
    """Whether instances have a state beside their dictionary: slots, or what a container or a class in C holds."""
    return any("__slots__" in _DICT.__get__(one) or has_state_in_c(one) for one in classes_of(kind)[:-1])


def dictionary_of(value: Any) -> dict[str, Any] | None:
    """An instance's own dictionary; None where it has none, or its class gives something else in its place."""
    for one in classes_of(type(value)):
        if (found := _DICT.__get__(one).get("__dict__")) is not None:
            if type(found) is not types.GetSetDescriptorType:
                return None
            own = found.__get__(value)
            return own if type(own) is dict else None
    return None


def contents_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _number_of(value: Tensor) -> int:
    """Its own in this process: the address of a tensor that is gone may be another one's."""
    kept = _NUMBERED.get(id(value))
    if kept is None or kept[0]() is not value:
        kept = _NUMBERED[id(value)] = weakref.ref(value), next(_NUMBERS)
    return kept[1]


def _plain(value: Any, kind: type) -> bytes:
    """A container of plain values in one go; empty for any other."""
    # In a copy: a thread, or what the script gave to `sys.setprofile`, may append to it all the while.
    items = [*value, *value.values()] if kind is dict else [*value]
    kinds = set(map(type, items))
    if not kinds <= _PLAIN or (kinds & _TEXTS and sum(len(one) for one in items if type(one) in _TEXTS) > MOST_BYTES):
        return b""
    return marshal.dumps(value, 2)


_TEXTS = frozenset({str, bytes})
_PLAIN = frozenset({type(None), bool, int, float, complex, *_TEXTS})


def _generator(value: torch.Generator) -> bytes:
    if value.device.type != "cpu":
        return repr((value.initial_seed(), value.get_offset())).encode()
    state = value.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())
