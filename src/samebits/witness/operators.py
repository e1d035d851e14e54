"""Every operator of one step: hashes of what it reads and of what it writes, and the script's line.

Two sides that run the same script are compared afterwards (`verify.repeat.operators`): the first operator whose inputs are equal
and whose results are not is where they part. A region that inductor has compiled is one operator.

Runs in: a process of the user's own, or a rank (`rank.recording`).
"""

from __future__ import annotations

import functools
import json
import os
import sys
import sysconfig
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .evidence import digest, local

UNWRITTEN = ("aten.empty", "aten.new_empty", "aten._efficientzerotensor")
"""Their results hold what was in memory before."""
OWN_MEMORY = ("rnn", "cudnn", "miopen")
"""In names of operators that hand memory of their own, in bytes, to their backward: only parts of it are written."""
COMPUTE_NOTHING = ("torch/_dynamo/convert_frame.py", "torch/multiprocessing/reductions.py")
"""What compiles, and what takes in tensors of other processes: when these arrive is chance."""
MOST_VALUES = 1 << 20
"""Of results with more elements the first ones are written."""
_PLAIN = (int, str, bool, torch.dtype, torch.device, type(None))
_OWN = os.path.dirname(os.path.abspath(__file__))
_LIBRARIES = tuple(
    {
        os.path.dirname(os.path.dirname(torch.__file__)),
        *(sysconfig.get_path(one) for one in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes a line for each operator while it is entered.

    Args:
        folder: where the files go.
        rank: of this process; part of their names.
        values_of: the operator whose results are written as well: its place, and its number there, from 0 on.
        place: where the process is; operators are numbered at each place. None: they are not recorded there.
        own: the folder of a library whose operators are its own affair, unless autograd calls them.
        fetching: the one of what calls the script for its data; nothing of that is recorded.
    """

    # As torch calls what a mode may say of itself.
    supports_higher_order_operators = True

    def __init__(
        self,
        folder: Path,
        rank: int,
        values_of: tuple[str, int] | None,
        place: Callable[[], str | None] = lambda: "",
        *,
        own: Sequence[str] = (),
        fetching: Sequence[str] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._folder, self._rank, self._values_of = folder, rank, values_of
        self._place, self._own, self._fetching = place, tuple(own), tuple(fetching)
        self._lines: list[str] = []
        self._counts: dict[str, int] = {}
        self._unwritten: set[int] = set()
        """Memory that was made and that no operator has written to."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Torch asks: what is compiled stays compiled."""
        return True

    def begin(self) -> None:
        """From here on."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Until here; the lines are written."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        (self._folder / f"operators-{self._rank:05d}.jsonl").write_text("".join(self._lines))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place, at = self._place(), _line(self._own, self._fetching)
        given = tree_leaves((args, kwargs))
        is_recorded = place is not None and at is not None
        inputs = list(map(self._hash, given)) if is_recorded else []
        before = _generators(func, kwargs) if is_recorded else []
        result = func(*args, **kwargs)
        # Many that can draw do not: dropout in evaluation, attention without dropout.
        for one, now in zip(before, _generators(func, kwargs) if before else [], strict=True):
            inputs += [] if torch.equal(one, now) else [f"generator {digest(one)}"]
        changed = list(_written(func, args, kwargs, given))
        self._note_memory(str(func), given, tree_leaves(result), changed)
        if place is not None and at is not None:
            self._record(place, at, str(func), given, inputs, [*tree_leaves(result), *changed])
        return result

    def _record(  # noqa: PLR0917 - what describes one call
        self, place: str, at: tuple[str, bool], name: str, given: list[Any], inputs: list[str], written: list[Any]
    ) -> None:
        number = self._counts.get(place, 0)
        self._counts[place] = number + 1
        if (place, number) == self._values_of:
            self._write_values([one for one in written if isinstance(one, Tensor)])
        record = {
            "place": place,
            "name": name,
            "in": inputs,
            "out": [self._hash(one) for one in written],
            "line": at[0],
            "backward": at[1],
            "shapes": [
                f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in given if isinstance(one, Tensor)
            ],
        }
        self._lines.append(json.dumps(record) + "\n")

    def _hash(self, one: Any) -> str:
        """Of a tensor the digest, of all else the text."""
        if isinstance(one, Tensor):
            return "meta" if one.is_meta else "unwritten" if _memory_of(one) in self._unwritten else digest(one)
        if isinstance(one, float):
            return one.hex()
        return repr(one) if isinstance(one, _PLAIN) else type(one).__name__

    def _note_memory(self, name: str, given: list[Any], made: list[Any], changed: list[Any]) -> None:
        """Keep in mind which memory nobody has written to: what is in it differs, and is read by nobody who means it."""
        before = {_memory_of(one) for one in given if isinstance(one, Tensor)}
        for one in made:
            if isinstance(one, Tensor) and (memory := _memory_of(one)) not in before:
                if name.startswith(UNWRITTEN) or (
                    one.dtype is torch.uint8 and any(word in name for word in OWN_MEMORY)
                ):
                    self._unwritten.add(memory)
                else:
                    self._unwritten.discard(memory)
        self._unwritten.difference_update(_memory_of(one) for one in changed if isinstance(one, Tensor))

    def _write_values(self, tensors: list[Tensor]) -> None:
        found = []
        for one in tensors:
            flat = local(one).contiguous().reshape(-1)[:MOST_VALUES].cpu()
            is_float = flat.is_floating_point()
            wide = (
                flat.to(torch.float64 if is_float else torch.int64)
                if not flat.is_complex()
                else torch.view_as_real(flat).to(torch.float64).reshape(-1)
            )
            values = array("q" if wide.dtype is torch.int64 else "d", wide.tolist())
            found.append(
                {
                    "dtype": str(one.dtype).removeprefix("torch."),
                    "values": [v.hex() if isinstance(v, float) else v for v in values],
                }
            )
        (self._folder / f"values-{self._rank:05d}.json").write_text(json.dumps(found))


def _memory_of(tensor: Tensor) -> int:
    """Where its memory begins; 0 where it has none."""
    return 0 if tensor.is_meta or tensor.layout is not torch.strided else tensor.untyped_storage().data_ptr()


def _generators(func: Any, kwargs: Any) -> list[Tensor]:
    """The states of the random numbers that it may draw from."""
    # What a compiled region draws nobody says.
    if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", (torch.Tag.nondeterministic_seeded,)):
        return []
    given = kwargs.get("generator")
    if isinstance(given, torch.Generator):
        return [given.get_state()]
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if _has_gpu() else [])]


def _has_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _written(func: Any, args: Any, kwargs: Any, given: list[Any]) -> Iterator[Any]:
    """Arguments that it writes to, as lists of parameters are in fused optimizers."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        # A compiled region says nothing of it.
        yield from (one for one in given if isinstance(one, Tensor))
        return
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tree_leaves(args[place] if place < len(args) else kwargs.get(argument.name))


def _line(own: tuple[str, ...], fetching: tuple[str, ...]) -> tuple[str, bool] | None:
    """The innermost line of the script, and whether autograd is on the way back; None where it is nothing of the script's."""
    frame: Any = sys._getframe(2)
    first, is_backward = "", False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith(COMPUTE_NOTHING):
            return None
        if file.endswith(("torch/autograd/graph.py", "torch/autograd/__init__.py")) and frame.f_code.co_name in (
            "_engine_run_backward",
            "backward",
            "grad",
        ):
            is_backward = True
        elif file.startswith(own):
            if (not first and not is_backward) or file.startswith(fetching):
                return None
        elif not first and not file.startswith((_OWN, "<", *_LIBRARIES)):
            first = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return first, is_backward


def keep_compiled_regions() -> None:
    """Let regions that are compiled from now on be seen as one operator each; torch's older versions compile nothing then."""
    compile_ = torch.compile

    @functools.wraps(compile_)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        import torch._inductor.config as settings

        if hasattr(settings, "wrap_inductor_compiled_regions"):
            settings.wrap_inductor_compiled_regions = True
        return compile_(*args, **kwargs)

    torch.compile = compiled
