"""What the script keeps, as one look sees it: each name with sixteen bytes that change where it changes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from samebits.rank.look.frames import (
    file_of_class,
    is_a_class_of_the_users,
    is_the_users,
    modules_of_the_script,
    script_frames,
    stored_by_libraries,
    variables_of,
)
from samebits.rank.look.reading import GENERATORS, Reader, contained_in, contents_of, dictionary_of, has_more

MOST_PARTS = 50
"""Of one thing that is searched for weights, and nearly so many of all."""
LONGEST_S = 0.05
"""Of a look, by the thread's own time."""


@dataclass(frozen=True)
class Root:
    """A name under which the script keeps something."""

    path: str
    """`scale`, `self.scale`, `Config.scale`."""
    code: CodeType | None
    """Of the frame whose variable it is; None of a module's."""
    file: str
    """The source file in which the name is used."""
    value: Any = field(repr=False)
    owner: tuple[int, str] = (0, "")
    """What it is an attribute of, and its name there; else its own identity: several names may lead to one thing."""
    is_held: bool = False
    """Whether it belongs to something that was prepared, which no source needs to be asked about."""


@dataclass(frozen=True)
class Seen(Root):
    """What one look saw of a name; it keeps no object: its `value` is None."""

    bits: bytes = b""
    is_whole: bool = True
    is_count: bool = False
    """Whether it is an exact int, as counters are."""
    adds: tuple[bool, bool] = (True, True)
    """Whether methods such as `update` only add: of the object whose attribute it is, and of itself."""
    kind: str = ""
    """"generator" for one of random numbers."""

    @classmethod
    def of(cls, root: Root, reader: Reader) -> Seen:
        """Read it."""
        value, (bits, is_whole) = root.value, reader.read(root.value)
        adds = False
        with suppress(Exception):  # another thread may change it
            adds = not holds_weights(value)
        place = root.path, root.code, root.file, None, root.owner, root.is_held
        adds_too = (adds, adds or contained_in(value, 0) is not None)
        return cls(
            *place, bits, is_whole, type(value) is int, adds_too, "generator" if type(value) in GENERATORS else ""
        )


@dataclass(frozen=True)
class CodeLine:
    """A running function of the script and the line where it is."""

    code: CodeType
    line: int


Key = tuple[str, str, CodeType | None]
"""A name, the file and the function that it belongs to: the same in each look, whatever else comes and goes."""


@dataclass(frozen=True)
class Observation:
    """One look."""

    names: dict[Key, Seen]
    places: tuple[CodeLine, ...]
    """The innermost first."""
    is_cut: bool = False
    """Whether the time was over before it had come to every name."""


@dataclass(frozen=True)
class Prepared:
    """What a look needs to know of the run.

    Args:
        held: identities of objects that are left out, with the parts that a state holds of them.
        models: by label; of their modules the attributes are looked at that no state holds.
        optimizers: the same.
        others: objects that are looked at as a whole: what is tracked, `run.state`, data sets.
        owned: what something prepared, or a library's loop, calls of the script, each with names of attributes that states hold.
    """

    held: frozenset[int]
    models: tuple[tuple[str, nn.Module], ...]
    optimizers: tuple[tuple[str, Optimizer], ...]
    others: tuple[tuple[str, Any], ...]
    owned: tuple[tuple[Any, frozenset[str]], ...] = ()


def look(prepared: Prepared, most_s: float) -> Observation:
    """Look at all that the script around the caller keeps, for `most_s` seconds of this thread; the modules beside it come last."""
    frames = list(script_frames())
    until_s = time.thread_time() + min(most_s, LONGEST_S)
    reader = Reader(prepared.held, time.thread_time, until_s)
    names: dict[Key, Seen] = {}
    is_cut = False
    variables, modules = _variables(frames, prepared), _of_modules(frames, prepared)
    for root in itertools.chain(_owned(prepared), variables, _attributes(prepared), modules):
        if is_cut := time.thread_time() > until_s:
            break
        key = root.path, root.file, root.code
        if key not in names:
            names[key] = Seen.of(root, reader)
    return Observation(names, tuple(CodeLine(frame.f_code, frame.f_lineno) for frame in frames), is_cut)


def _variables(frames: list[FrameType], prepared: Prepared) -> Iterator[Root]:
    seen: set[int] = set()
    for frame in frames:
        file, is_module = frame.f_code.co_filename, frame.f_code.co_name == "<module>"
        if not is_module:
            for name, value in variables_of(frame).items():
                yield from _roots(name, value, frame.f_code, file, prepared)
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            for name, value in list(frame.f_globals.items()):
                yield from _roots(name, value, frame.f_code if is_module else None, file, prepared)


def _owned(prepared: Prepared) -> Iterator[Root]:
    """Attributes of objects that no variable may name, and variables that functions share with those around them."""
    for number, (one, held) in enumerate(prepared.owned):
        kind, like = type(one), sum(type(other) is type(one) for other, _ in prepared.owned[:number])
        if kind is FunctionType and is_the_users(one.__code__.co_filename):
            for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
                yield from _roots(name, contents_of(cell), one.__code__, one.__code__.co_filename, prepared)
        elif is_a_class_of_the_users(kind) and id(one) not in prepared.held:
            own, label = held | stored_by_libraries(kind), kind.__name__ + (f" {like + 1}" if like else "")  # type: ignore[arg-type]
            for key, part in list((dictionary_of(one) or {}).items()):
                if key not in own and id(part) not in prepared.held and not _is_ours(type(part)):
                    yield Root(f"self.{key} of {label}", None, file_of_class(kind), part, (id(one), key))


def _of_modules(frames: list[FrameType], prepared: Prepared) -> Iterator[Root]:
    """Variables of modules beside the script."""
    seen = {id(frame.f_globals) for frame in frames}
    for module in modules_of_the_script():
        variables = object.__getattribute__(module, "__dict__")
        if id(variables) not in seen:
            seen.add(id(variables))
            for name, value in list(variables.items()):
                yield from _roots(name, value, None, str(variables.get("__file__")), prepared)


def _roots(name: str, value: Any, code: CodeType | None, file: str, prepared: Prepared) -> Iterator[Root]:
    """A variable; of an object or a class of the user's, each of its attributes."""
    kind = type(value)
    if name.startswith("__") or id(value) in prepared.held or issubclass(kind, ModuleType) or _is_ours(kind):
        return
    if issubclass(kind, type):
        if is_a_class_of_the_users(value):
            for key, part in list(type.__dict__["__dict__"].__get__(value).items()):
                if not key.startswith("__"):
                    yield Root(f"{name}.{key}", code, file, part, (id(value), key))
        return
    attributes = dictionary_of(value) if is_a_class_of_the_users(kind) and not issubclass(kind, nn.Module) else None
    if attributes is None:
        yield Root(name, code, file, value, (id(value), ""))
        return
    is_owned = any(one is value for one, _ in prepared.owned)
    for key, part in list(attributes.items()) if not is_owned else ():
        if id(part) not in prepared.held and not _is_ours(type(part)):
            yield Root(f"{name}.{key}", code, file, part, (id(value), key))
    if has_more(kind):
        yield Root(name, code, file, value, (id(value), ""))


_OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes that every module has: its state, and torch's own."""
_OF_OPTIMIZERS = frozenset(vars(torch.optim.SGD([torch.zeros(1, device="cpu")]))) | {"_zero_grad_profile_name"}


def _attributes(prepared: Prepared) -> Iterator[Root]:
    """What prepared things keep that is in no state."""
    for label, model in prepared.models:
        for place, module in model.named_modules():
            yield from _of_module(f"{label}.{place}" if place else label, module)
    for label, optimizer in prepared.optimizers:
        for key, value in list(object.__getattribute__(optimizer, "__dict__").items()):
            if not (key in _OF_OPTIMIZERS or callable(value)):
                yield Root(f"{label}.{key}", None, "", value, is_held=True)
    for label, other in prepared.others:
        yield Root(label, None, "", other, is_held=True)


def _of_module(label: str, module: nn.Module) -> Iterator[Root]:
    own = object.__getattribute__(module, "__dict__")
    # Before each forward a hook of torch's makes `weight` anew from these: pruning, the older norms of weights.
    made = {key.rpartition("_")[0] for key in own.get("_parameters", ()) if key.endswith(("_orig", "_g"))}
    made = made if own.get("_forward_pre_hooks") else set()
    for key, value in list(own.items()):
        if not (key in _OF_MODULES or key in made or issubclass(type(value), nn.Module) or callable(value)):
            yield Root(f"{label}.{key}", None, "", value, is_held=True)
    for key in own.get("_non_persistent_buffers_set", ()):
        yield Root(f"{label}.{key}", None, "", own["_buffers"].get(key), is_held=True)
    for key, tensor in [*own["_parameters"].items(), *own["_buffers"].items()]:
        for name, value in (dictionary_of(tensor) or {}).items() if tensor is not None else ():
            yield Root(f"{label}.{key}.{name}", None, "", value, is_held=True)


def holds_weights(value: Any) -> bool:
    """Whether it has floating tensors with a dimension, as an average of weights has, and a meter of numbers not."""
    found = [value]
    for one in found:
        if issubclass(type(one), torch.Tensor) and one.is_floating_point() and one.dim():
            return True
        if (parts := contained_in(one, MOST_PARTS)) is None:
            parts = [*(dictionary_of(one) or {}).values()][:MOST_PARTS]
            if not is_a_class_of_the_users(type(one)):  # a progress bar holds a loader
                parts = [part for part in parts if issubclass(type(part), (torch.Tensor, dict, list, tuple))]
        found += parts if len(found) < MOST_PARTS else []
    return False


def _is_ours(kind: type) -> bool:
    module = type.__getattribute__(kind, "__module__")
    return isinstance(module, str) and module.startswith("samebits.")
