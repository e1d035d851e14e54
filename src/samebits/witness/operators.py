"""Every operator of one step: hashes of what it reads and of what it writes, and the script's line.

Two sides that run the same script are compared afterwards (`verify.operators`): the first operator whose inputs are equal and
whose results are not is where they part.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .evidence import digest, local, rank

UNWRITTEN = ("aten.empty", "aten.new_empty", "aten._efficientzerotensor")
"""Their results hold what was in memory before."""
OWN_MEMORY = ("rnn", "cudnn", "miopen")
"""In names of operators that hand memory of their own, in bytes, to their backward: only parts of it are written."""
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
        folder: where the file of this process goes.
        values_of: the number of the operator, from 0 on, whose results are written as well.
    """

    def __init__(self, folder: Path, values_of: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._folder, self._values_of = folder, values_of
        self._lines: list[str] = []
        self._count = 0
        self._unwritten: set[int] = set()
        """Memory that was made and that no operator has written to."""

    def begin(self) -> None:
        """From here on."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Until here; the lines are written."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        (self._folder / f"operators-{rank():05d}.jsonl").write_text("".join(self._lines))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        inputs = [*map(self._hash, given), *_generators(func, kwargs)]
        result = func(*args, **kwargs)
        changed = list(_written(func, args, kwargs))
        written = [*tree_leaves(result), *changed]
        self._note_memory(str(func), given, tree_leaves(result), changed)
        if self._count == self._values_of:
            self._write_values([one for one in written if isinstance(one, Tensor)])
        line, is_backward = _line()
        record = {
            "name": str(func),
            "in": inputs,
            "out": [self._hash(one) for one in written],
            "line": line,
            "backward": is_backward,
            "shapes": [
                f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in given if isinstance(one, Tensor)
            ],
        }
        self._lines.append(json.dumps(record) + "\n")
        self._count += 1
        return result

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
        (self._folder / f"values-{rank():05d}.json").write_text(json.dumps(found))


def _memory_of(tensor: Tensor) -> int:
    """Where its memory begins; 0 where it has none."""
    return 0 if tensor.is_meta or tensor.layout is not torch.strided else tensor.untyped_storage().data_ptr()


def _generators(func: Any, kwargs: Any) -> Iterator[str]:
    """The state of the random numbers that it draws from."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        given = kwargs.get("generator")
        state = given.get_state() if isinstance(given, torch.Generator) else torch.get_rng_state()
        yield f"generator {digest(state)}"


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Arguments that it writes to, as lists of parameters are in fused optimizers."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tree_leaves(args[place] if place < len(args) else kwargs.get(argument.name))


def _line() -> tuple[str, bool]:
    """The innermost line of the script, and whether autograd is on the way back."""
    frame: Any = sys._getframe(1)
    first, is_backward = "", False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith(("torch/autograd/graph.py", "torch/autograd/__init__.py")) and frame.f_code.co_name in (
            "_engine_run_backward",
            "backward",
            "grad",
        ):
            is_backward = True
        if not first and not file.startswith((_OWN, "<", *_LIBRARIES)):
            first = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return first, is_backward
