"""Hashes of tensors and other values, and the lines that hold them: the format is that of `rank.recording.evidence_file`."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

NAN_MARK = " nan"
"""Follows the hash of a tensor with a NaN in it, as `protocol.recording` has it."""
MAX_LIST = 64
"""Longer lists inside a state are data: numbers and texts get one hash, tensors one each, others none."""
LONG = 1 << 16
"""Bytes from which on a tensor has a quicker digest."""
WORD, WIDTHS = 8, (1024, 1021)
"""Bytes of a word, and of how many words the rows of its tables are."""
MUCH = 1 << 22
"""Bytes from which on several threads hash."""
MOST_THREADS = 8
MOST_FILES = 64
"""Of processes that all say they are the same rank."""


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that is in this process, dense."""
    # A DTensor has it; a plain tensor has no such method.
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    part = part.detach()
    part = part if part.layout is torch.strided else part.to_dense()
    # Conjugated and negated views hold the bits of others.
    return part.resolve_conj().resolve_neg()


def digest(tensor: Tensor) -> str:
    """32 hexadecimal digits: equal where the bits are, in the order of the elements. Made for accidents, not against attackers."""
    flat = local(tensor).contiguous().cpu().reshape(-1).view(torch.uint8)
    length = flat.numel()
    found = (ctypes.c_char * length).from_address(flat.data_ptr()) if length else b""
    if length < LONG:
        return blake2b(found, digest_size=16).hexdigest()
    # [Note: sums of rows and columns]
    # A hash of a cryptographer takes as long as a step of many models. Sums of whole numbers run at the speed of memory: of the
    # words as a table of two widths, each row and each column. What moves or changes leaves one of them other than it was.
    whole = flat if flat.storage_offset() % WORD == 0 else flat.clone()
    words = whole[: length // WORD * WORD].view(torch.int64)
    text = blake2b(memoryview(found)[words.nbytes :], digest_size=16)
    for width in WIDTHS:
        rows = len(words) // width
        table = words[: rows * width].view(rows, width)
        for sums in (table.sum(0), table.sum(1), words[rows * width :]):
            text.update((ctypes.c_char * sums.nbytes).from_address(sums.data_ptr()) if len(sums) else b"")
    return text.hexdigest()


def marked(tensor: Tensor) -> str:
    """The digest, and a mark where the tensor has a NaN."""
    return digest(tensor) + (NAN_MARK if _has_nan(local(tensor)) else "")


def _has_nan(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    # A sum is one pass; it is NaN of infinities, too.
    return tensor.dtype.itemsize > 1 and bool(torch.isnan(tensor.sum())) and bool(torch.isnan(tensor).any())


def norm(tensor: Tensor) -> float:
    """The Euclidean norm, in double precision."""
    values = local(tensor)
    return float(torch.linalg.vector_norm(values.to(torch.complex128 if values.is_complex() else torch.float64)))


def _all_marked(tensors: Sequence[Tensor]) -> list[str]:
    is_plain = all(type(one) in (Tensor, torch.nn.Parameter) and one.layout is torch.strided for one in tensors)
    if not is_plain or sum(one.nbytes for one in tensors) < MUCH:
        return list(map(marked, tensors))
    # hashlib lets other threads run. They end here: a script that forks later has no thread of ours.
    with ThreadPoolExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(marked, tensors))


def rank() -> int:
    """That of this process."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    text = os.environ.get("RANK", "")
    return int(text) if text.isdigit() else 0


class EvidenceFile:
    """What one process has recorded.

    Args:
        folder: where the files of all processes are.
        rank: its rank.
        norms: whether the norm of each tensor is written too.
        facts: what the bits depend on, written first.
    """

    def __init__(self, folder: Path, rank: int, facts: Mapping[str, Any], *, norms: bool) -> None:
        self._file = _create(folder, rank)
        self._items: dict[str, str] = {}
        self._norms: dict[str, str] | None = {} if norms else None
        self.write({"begin": 1, "facts": dict(facts)})

    def tensor_items(self, pairs: Iterable[tuple[str, Tensor]], *, are_newer: bool = False) -> None:
        """Record tensors; left out is one whose item is there already, if these are no newer values, or that is somewhere else."""
        new = {item: one for item, one in pairs if (are_newer or item not in self._items) and not one.is_meta}
        self._items.update(zip(new, _all_marked(list(new.values())), strict=True))
        if self._norms is not None:
            self._norms.update((item, norm(tensor).hex()) for item, tensor in new.items())

    def state_items(self, name: str, value: Any) -> None:
        """Record everything in a state that can be compared."""
        for path, leaf in leaves(name, value):
            if isinstance(leaf, Tensor):
                self.tensor_items([(path, leaf)])
            else:
                self._items.setdefault(path, leaf.hex() if isinstance(leaf, float) else repr(leaf))

    def flush(self, step: int) -> None:
        """Write what was recorded since the last time as items of `step`."""
        if self._items:
            self.write({"step": step, "items": self._items, **({"norms": self._norms} if self._norms else {})})
        self._items = {}
        self._norms = None if self._norms is None else {}

    def write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _create(folder: Path, rank: int) -> TextIO:
    """A file that no other process has, though it says that it is the same rank."""
    for number in range(1, MOST_FILES + 1):
        try:
            descriptor = os.open(
                folder / f"rank-{rank:05d}.{number}.jsonl", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600
            )
        except FileExistsError:
            continue
        return os.fdopen(descriptor, "w")
    raise SystemExit(f"samebits: {MOST_FILES} processes of rank {rank} train; that is more than can be compared.")


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What can be compared in a state, each with its path: tensors, numbers and texts; what `rank.recording` walks, too."""
    value = _plain(value)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(f"{path}.{key}", item)
    elif isinstance(value, (list, tuple)):
        if len(value) <= MAX_LIST or all(isinstance(item, Tensor) for item in value):
            for number, item in enumerate(value):
                yield from leaves(f"{path}.{number}", item)
        elif all(isinstance(item, (int, float, str, type(None))) for item in value):
            yield path, blake2b(repr(value).encode(), digest_size=16).hexdigest()
    elif isinstance(value, (Tensor, int, float, str, bool, type(None))):
        yield path, value


def _plain(value: Any) -> Any:
    """An array of NumPy's as a tensor, a scalar of NumPy's as a number; anything else as it is."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(numpy.ascontiguousarray(value))
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value
