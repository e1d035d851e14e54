"""What a script keeps itself, from its source: a closed list, decided once, at the first step.

What the loop reads, calls or iterates and did not make in this turn must be prepared, tracked, in `run.state`, immutable, or
a plain value that the loop only reads. Anything else is named once, with its line and what to write. A name blocks nothing:
it labels the bits of a run that resumed without it.
"""

from __future__ import annotations

import argparse
import array
import ast
import collections
import datetime as dt
import enum
import functools
import io
import numbers
import os
import random
import re
import types
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from lockstep.caller import short
from lockstep.run.run_state import Progress
from lockstep.run.script.harmless import HARMLESS
from lockstep.run.script.objects import NEW, hooks_of, is_users
from lockstep.run.script.source import functions_in, tree
from lockstep.run.script.turn import Turn
from lockstep.run.script.values import Judge, Place, Scope, Seen, Value
from lockstep.run.watch.holdings import is_the_users, parts_of, script_frames
from lockstep.run.watch.named import Named

ADVICE = {
    "variable": "keep it in run.state",
    "attribute": "keep the value in run.state, or give the object state_dict and load_state_dict for run.track",
    "changed": "keep it in run.state, or make it anew in every turn",
    "place": "make it anew in every epoch, or give it state_dict and load_state_dict for run.track",
    "optimizer": "pass it to run.prepare or run.track",
    "generator": "draw from the global generators, which every state holds",
    "loader": "iterate a torch.utils.data.StackDataset with run.steps, or make the iterator in every epoch",
    "counted": "use step.index, the step's number in the epoch",
    "setter": "set it before the first epoch, or in every turn anew",
    "exec": "assign the variables by name",
    "gradients": "call optimizer.zero_grad() at the end of each epoch",
    "hidden": "keep what it changes in run.state",
}
_ATOMS = (numbers.Number, str, bytes, type(None), range, slice, PurePath, re.Pattern, dt.date, dt.timedelta,
          dt.time, torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype, np.generic, types.EllipsisType,
          types.NotImplementedType, types.ModuleType, type, types.FunctionType)  # fmt: skip
_PLAIN = (list, dict, set, collections.deque, bytearray, memoryview, np.ndarray, Tensor, array.array,
          collections.UserDict, collections.UserList, type(os.environ))  # fmt: skip
_OPEN = (argparse.Namespace, types.SimpleNamespace, enum.Enum, tuple, frozenset, nn.Module, functools.partial, types.MethodType,
         nn.ParameterList, BaseException)  # fmt: skip
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_GLOBAL = {id(torch.default_generator), id(random._inst), id(np.random.mtrand._rand)}  # noqa: SLF001
MOST_ELEMENTS = 1000


class ScriptState(Judge):
    """What one run's script keeps itself. Read it inside the script's loop over steps.

    Args:
        progress: knows what every state holds.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        unsaved = {
            id(module._buffers[name])  # noqa: SLF001 - torch has no public name for what is not saved
            for model in progress.models
            for module in model.modules()
            for name in module._non_persistent_buffers_set  # noqa: SLF001
        }
        self._held = {id(one) for one in parts_of(progress.models, progress.known)} - unsaved
        self._found: dict[int | str, Named] = {}
        self._looked: set[int] = set()
        self._turn: Turn | None = None

    def names(self) -> list[Named]:
        """All of them, each once."""
        frames = list(script_frames())
        cells: dict[str, tuple[Place, Any]] = {}
        for frame in frames:
            for name in frame.f_code.co_cellvars:
                if name in frame.f_locals:
                    cells[name] = ("v", id(frame), name), frame.f_locals[name]
        self._called_by_others(Turn(self, cells))
        for frame in frames:
            self._in(frame, cells)
        return list(self._found.values())

    def _called_by_others(self, turn: Turn) -> None:
        """Hooks, `forward` and data sets: the script's loop doesn't show them."""
        self._turn = turn
        for model in self._progress.models:
            turn.module(model, type(model).__name__)
            for parameter in model.parameters():
                self._hooks(turn, parameter, "a parameter")
        for thing in self._progress.taken:
            if isinstance(thing, Optimizer):
                self._hooks(turn, thing, type(thing).__name__)
            elif isinstance(thing, DataLoader):
                for name in ("dataset", "sampler", "batch_sampler", "collate_fn"):
                    self._data(turn, getattr(thing, name, None), f"the loader's {name}")
        for place, (at, owner, is_excused) in turn.stores.items():
            if not is_excused and (place in turn.reads or not is_users(type(owner))):
                self.name("attribute", owner, at)

    def _hooks(self, turn: Turn, thing: Any, text: str) -> None:
        for hook in hooks_of(thing):
            turn.given([Value(hook, text)], 0)

    def _data(self, turn: Turn, thing: Any, text: str, depth: int = 4) -> None:
        """A data set, and those around which it is."""
        turn.given([Value(thing, text, ((text, thing),))], 0)
        if isinstance(thing, Dataset) and depth:
            for name, one in list(vars(thing).items()):
                for part in one if isinstance(one, (list, tuple)) and len(one) < MOST_ELEMENTS else [one]:
                    if is_users(type(part)) or isinstance(part, Dataset):
                        self._data(turn, part, f"{text}.{name}", depth - 1)

    def _in(self, frame: FrameType, cells: dict[str, tuple[Place, Any]]) -> None:
        """The loops of one running function around the line where it is."""
        code, line = frame.f_code, frame.f_lineno
        is_module = code.co_name == "<module>"
        nodes = (
            [tree(code.co_filename)]
            if is_module
            else functions_in(code.co_filename).get((code.co_name, code.co_firstlineno), [])
        )
        if code.co_filename == "<string>" and any(name.startswith("multiprocessing.") for name in code.co_names):
            return  # what multiprocessing runs a child with
        if nodes and isinstance(nodes[0], ast.Lambda):
            return  # it has no loop
        if not nodes or not nodes[0].body:
            self.name("hidden", code, Seen(code.co_name, code.co_filename, line))
            return
        local = frozenset() if is_module else frozenset((*code.co_varnames, *code.co_cellvars))
        inner = {name: (("v", id(frame), name), frame.f_locals.get(name, NEW)) for name in code.co_freevars}
        for name in inner:
            if name in cells and cells[name][1] is inner[name][1]:
                inner[name] = cells[name]
        scope = Scope(id(frame), local, frame.f_locals, frame.f_globals, code.co_filename, inner, is_running=True)
        for loop, behind in loops_around(nodes[0].body, line):
            self._turn = Turn(self, cells)
            self._turn.follow(loop, behind, scope)

    # What the reader asks

    def is_held(self, thing: Any) -> bool:
        return (
            id(thing) in self._held or type(thing).__module__.startswith("lockstep.") or thing is self._progress.values
        )

    def is_changeable(self, thing: Any) -> bool:
        if isinstance(thing, _PLAIN):
            return True
        return not isinstance(thing, (*_ATOMS, tuple, frozenset)) and (
            is_users(type(thing)) or isinstance(thing, _OPEN)
        )

    def look(self, value: Value, at: Seen) -> None:
        thing = value.obj
        if id(thing) in self._looked:
            return
        self._looked.add(id(thing))
        kind = self._kind(thing)
        if kind:
            self.name(kind, thing, at)
        elif isinstance(thing, (list, tuple, dict, set, frozenset)) and not self.is_held(thing):
            for number, one in enumerate(list(thing.values() if isinstance(thing, dict) else thing)[:MOST_ELEMENTS]):
                if not isinstance(one, (*_ATOMS, Tensor)):
                    self.look(Value(one), Seen(f"{at.text}[{number}]", at.file, at.line))
        elif isinstance(thing, DataLoader):
            for name in ("generator", "sampler", "dataset"):
                self.look(Value(getattr(thing, name, None)), Seen(f"{at.text}.{name}", at.file, at.line))
            assert self._turn is not None
            self._data(self._turn, thing.dataset, f"{at.text}.dataset")

    def _kind(self, thing: Any) -> str:
        """Of what kind something is that no state holds and that may change where nobody sees it; empty for anything else."""
        if self.is_held(thing) or id(thing) in _GLOBAL or isinstance(thing, (*_ATOMS, *_PLAIN, *_OPEN)):
            return ""
        if isinstance(thing, types.BuiltinFunctionType):
            return self._kind(thing.__self__)
        if isinstance(thing, _GENERATORS):
            return "generator"
        if isinstance(thing, (Optimizer, LRScheduler)):
            return "optimizer"
        if isinstance(thing, torch.amp.GradScaler):
            return "optimizer" if thing.is_enabled() else ""
        if isinstance(thing, io.IOBase) and not isinstance(thing, (io.StringIO, io.BytesIO)):
            return "" if thing.closed or not thing.readable() else "place"
        libraries = [one for one in type(thing).__mro__ if not is_users(one) and one is not object]
        if is_users(type(thing)):
            first = next(iter(libraries), object)
            return (
                ""
                if first is object or issubclass(first, (*_PLAIN, *_OPEN, Dataset)) or _is_harmless(first)
                else "place"
            )
        if hasattr(type(thing), "__next__"):
            return "loader" if "dataloader" in type(thing).__module__ else "place"
        if callable(getattr(thing, "__wrapped__", None)):
            return ""
        return "" if any(map(_is_harmless, libraries)) else "place"

    def name(self, kind: str, thing: Any, at: Seen) -> None:
        key: int | str = (
            f"{at.file} {at.text}" if thing is None or kind in ("variable", "counted", "exec") else id(thing)
        )
        what = at.text if kind != "counted" else f"{at.text.rstrip('()')} around run.steps"
        if kind == "hidden":
            what = f"what {at.text} changes, whose source cannot be read whole"
        self._found.setdefault(key, Named(what, short(at.file, at.line), ADVICE[kind], kind))


def _is_harmless(kind: type) -> bool:
    parts = f"{kind.__module__}.{kind.__qualname__}".split(".")
    return any(".".join(parts[:number]) in HARMLESS for number in range(1, len(parts) + 1))


def loops_around(body: Sequence[ast.stmt], line: int) -> Iterator[tuple[ast.For | ast.While, list[ast.stmt]]]:
    """The loops of a function around a line, outermost first, each with what follows on it in the function."""
    yield from _loops(body, line, [])


def _loops(body: Sequence[ast.stmt], line: int, after: list[ast.stmt]) -> Iterator[tuple[Any, list[ast.stmt]]]:
    for number, one in enumerate(body):
        if not one.lineno <= line <= (one.end_lineno or 0) or isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            continue
        behind = [*body[number + 1 :], *after]
        is_loop = isinstance(one, (ast.For, ast.While))
        if is_loop:
            behind = [*one.orelse, *behind]  # type: ignore[attr-defined]
            yield one, behind
        for block in ("body", "orelse", "handlers", "cases", "finalbody"):
            inside = getattr(one, block, [])
            for part in [each.body for each in inside] if inside and not isinstance(inside[0], ast.stmt) else [inside]:
                yield from _loops(part, line, behind)


def named_in(progress: Progress) -> list[Named]:
    """What the script around the caller keeps itself, with its lines and what to write; nothing of it blocks anything."""
    return ScriptState(progress).names()


__all__ = ["Named", "ScriptState", "is_the_users", "loops_around", "named_in"]
