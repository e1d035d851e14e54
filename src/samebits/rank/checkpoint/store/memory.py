"""Anonymous memory in which a state lies while it is written: mapped once by every rank, used for every state."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samebits.machine.memory_pressure import read_memory_pressure
from samebits.rank.caller import where
from samebits.rank.checkpoint.format.finite import may_be_infinite
from samebits.rank.checkpoint.format.sources import Found
from samebits.rank.checkpoint.format.tensor_file import Described, header, order_of
from samebits.rank.transport.contract import Transport

PIECE_BYTES = 4 << 20
"""Tensors are cut into pieces of about this size, between two rows."""
MADV_POPULATE_WRITE = 23
ALIGNMENT = mmap.PAGESIZE
"""Of the first byte of each file: disks read whole pages of memory."""


@dataclass(frozen=True)
class MemoryFile:
    """Where the processes of a node find the memory."""

    name: str
    process: int
    descriptor: int
    size: int
    """In bytes."""


class Mapped:
    """The memory as one process sees it.

    Args:
        descriptor: of a file that has at least `size` bytes. It may be closed afterwards.
        size: in bytes.

    Raises:
        OSError: when it cannot be mapped.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        # [Note: who maps the pages]
        # Each rank those that it writes to, by `populate` or its first copy: 0.25 s for 1 GB, side by side with the others.
        self._bytes = torch.frombuffer(mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED), dtype=torch.uint8)

    @classmethod
    def at(cls, place: MemoryFile) -> Mapped:
        """Map the memory of another process. Raises OSError where that is not possible, as on another node."""
        path = Path(f"/proc/{place.process}/fd/{place.descriptor}")
        if not str(path.readlink()).startswith(f"/memfd:{place.name} "):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(descriptor, place.size)
        finally:
            os.close(descriptor)

    def populate(self, spans: Iterable[tuple[int, int]]) -> None:
        """Let the pages of these bytes be there and be mapped, so that a copy takes no fault: first byte and size of each.

        Raises:
            OSError: when there is not so much memory, and before Linux 5.14.
        """
        begin, madvise = self._bytes.data_ptr(), ctypes.CDLL(None, use_errno=True).madvise
        for at, size in spans:
            first = at // mmap.PAGESIZE * mmap.PAGESIZE
            # [Note: why pages are asked for in small pieces]
            # The kernel holds the lock of the address space meanwhile, and training maps and unmaps memory in every step.
            for piece in range(first, at + size, PIECE_BYTES):
                length = min(PIECE_BYTES, at + size - piece)
                if madvise(ctypes.c_void_p(begin + piece), ctypes.c_size_t(length), MADV_POPULATE_WRITE):
                    error = ctypes.get_errno()
                    raise OSError(error, os.strerror(error))

    def put(self, at: int, tensor: Tensor) -> None:
        """Copy a tensor, on any device, with any strides; `at` must be a multiple of its item size.

        What lies in one piece is copied by the C library: for large blocks it writes past the caches, torch does not.
        """
        # [Note: why memmove]
        # For large blocks the C library writes past the caches, torch does not.
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            ctypes.memmove(self._bytes.data_ptr() + at, tensor.data_ptr(), tensor.nbytes)
        elif tensor.numel():
            self._bytes[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())


class StateMemory:
    """A file without a name (memfd) that other processes can read and write. It grows, and never shrinks."""

    def __init__(self) -> None:
        self._name = f"samebits-state-{secrets.token_hex(8)}"
        self.descriptor = os.memfd_create(self._name, os.MFD_CLOEXEC)
        self.mapped: Mapped | None = None
        """None while nothing is reserved."""
        self._size = self._with_pages = 0

    @property
    def place(self) -> MemoryFile:
        return MemoryFile(self._name, os.getpid(), self.descriptor, self._size)

    def reserve(self, size: int, *, has_pages: bool = True) -> None:
        """Let there be `size` bytes, with their pages unless somebody asks for them later (`Mapped.populate`).

        Raises:
            OSError: when there is not so much memory.
        """
        missing = size - (self._with_pages if has_pages else self._size)
        if missing > (read_memory_pressure().available_bytes or size):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        if has_pages and missing > 0:
            os.posix_fallocate(self.descriptor, 0, size)
            self._with_pages = size
        if self.mapped is not None and size <= self._size:
            return
        if os.fstat(self.descriptor).st_size < size:
            os.ftruncate(self.descriptor, size)
        # [Note: why the old mapping goes first]
        # If the new one fails, nothing may be left that is smaller than the file.
        self.mapped, self._size = None, 0
        self.mapped, self._size = Mapped(self.descriptor, size), size

    def write(self, at: int, data: bytes) -> None:
        """Write plain bytes, also behind what is reserved. Raises OSError when there is no memory."""
        if os.pwrite(self.descriptor, data, at) != len(data):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def close(self) -> None:
        """Let go of it."""
        self.mapped = None
        with suppress(OSError):
            os.close(self.descriptor)


class FileImage:
    """Where the parts of one safetensors file lie in memory.

    Args:
        at: the file's first byte, a multiple of `ALIGNMENT`.
        described: its tensors.
        judged: those that are to be finite.
    """

    def __init__(self, at: int, described: Mapping[str, Described], judged: Container[str] = ()) -> None:
        self.at, self.header = at, header(described)
        self.places: dict[str, int] = {}
        """The first byte of each tensor, in the order of the file."""
        self.judged: list[tuple[str, str, int, int]] = []
        """The tensors that are to be finite and may be infinite: name, dtype's code, first byte and size."""
        end = at + len(self.header)
        for name in order_of(described):
            self.places[name] = end
            if name in judged and may_be_infinite(described[name].code):
                self.judged.append((name, described[name].code, end, described[name].size_bytes))
            end += described[name].size_bytes
        self.size = end - at

    @property
    def end(self) -> int:
        """The first byte behind it where another file may begin."""
        return -(-(self.at + self.size) // ALIGNMENT) * ALIGNMENT


CALL = "memory of a state"


@dataclass(frozen=True)
class Common:
    """What the ranks have agreed on."""

    mapped: Mapped | None
    """The memory; None where this process cannot open it, as on another node."""
    reach: Sequence[int]
    """The ranks that can, in ascending order; the same on every rank."""
    own: StateMemory | None
    """On rank 0 the memory too."""


class CommonMemory:
    """The memory as one rank has it.

    Args:
        refusal: says why so many bytes are not to be taken, if they are not; asked on rank 0.
    """

    def __init__(self, refusal: Callable[[int], str]) -> None:
        self._refusal = refusal
        self._own: StateMemory | None = None
        self._seen: tuple[MemoryFile, Mapped] | None = None
        """That of rank 0, on another rank."""

    def offer(self) -> dict[str, Any] | None:
        """What this rank can write to, for `find`; None for nothing."""
        if self._own is not None and not self._refusal(self._own.place.size):
            return vars(self._own.place)
        return vars(self._seen[0]) if self._seen is not None else None

    def find(self, transport: Transport, record: Sequence[Any], size: int, *, has_pages: bool = True) -> Common | str:
        """Memory of `size` bytes, or why there is none. Collective: call it on every rank.

        Args:
            transport: between the ranks.
            record: what `offer` returned on each, just before.
            size: the same on every rank.
            has_pages: see `StateMemory.reserve`.
        """
        offer, reach = record[0], [*range(transport.world_size)]
        if offer is None or offer["size"] < size or any(one != offer for one in record):
            mine = self._make(size, has_pages) if transport.rank == 0 else None
            [offer, *_] = transport.all_gather_object(mine, CALL, where())
            if isinstance(offer, str):
                return offer
            can = transport.all_gather_object(self._open(MemoryFile(**offer)) is not None, CALL, where())
            reach = [rank for rank, can_write in enumerate(can) if can_write]
        return Common(self._open(MemoryFile(**offer)), reach, self._own)

    def _make(self, size: int, has_pages: bool) -> dict[str, Any] | str:
        if why := self._refusal(size):
            return why
        try:
            self._own = self._own or StateMemory()
            self._own.reserve(size, has_pages=has_pages)
        except OSError as error:
            # [Note: memory that could not be had]
            # It goes as a whole: a part of it without pages would end the rank that copies to it by SIGBUS.
            if self._own is not None:
                self._own.close()
                self._own = None
            return error.strerror or str(error)
        return vars(self._own.place)

    def _open(self, place: MemoryFile) -> Mapped | None:
        if self._own is not None and self._own.place == place:
            return self._own.mapped
        if self._seen is None or self._seen[0] != place:
            self._seen = None
            with suppress(OSError):
                self._seen = place, Mapped.at(place)
        return self._seen[1] if self._seen is not None else None

    def close(self) -> None:
        """Let go of it."""
        self._seen = None
        if self._own is not None:
            self._own.close()
            self._own = None


@dataclass(frozen=True)
class Piece:
    """Rows of a tensor, which one rank copies."""

    file: str
    name: str
    rows: slice | None
    """None: it is copied whole."""
    offset: int
    """The first byte, counted from the tensor's."""
    size: int
    """In bytes."""

    def of(self, tensor: Tensor) -> Tensor:
        """The rows."""
        return tensor if self.rows is None else tensor[self.rows]


def share_out(found: Found, reach: Collection[int]) -> dict[int, list[Piece]]:
    """What each rank in `reach` copies; together that is once every row of each tensor that a rank in `reach` has."""
    loads = dict.fromkeys(reach, 0)
    shares: dict[int, list[Piece]] = {rank: [] for rank in reach}
    entries = [(one.is_everywhere, file, name) for file, tensors in found.items() for name, one in tensors.items()]
    # [Note: who copies what all hold]
    # First what one rank holds alone is assigned. What all hold then evens out the shares.
    for is_everywhere, file, name in sorted(entries):
        source = found[file][name]
        givers = reach if is_everywhere else [rank for rank in reach if rank == source.rank]
        for rows, offset, size in _cuts(source.described) if givers else []:
            rank = min(givers, key=loads.__getitem__)
            loads[rank] += size
            shares[rank].append(Piece(file, name, rows, offset, size))
    return shares


def _cuts(described: Described) -> list[tuple[slice | None, int, int]]:
    """The pieces of a tensor: rows, first byte and number of bytes of each."""
    size = described.size_bytes
    if size <= PIECE_BYTES or described.shape[0] == 1:
        return [(None, 0, size)]
    row_bytes = size // described.shape[0]
    step = max(1, PIECE_BYTES // row_bytes)
    begins = range(0, described.shape[0], step)
    return [(slice(at, at + step), at * row_bytes, min(step * row_bytes, size - at * row_bytes)) for at in begins]
