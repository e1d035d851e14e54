"""Anonymous memory in which a state lies while it is written: mapped once by every rank, used for every state."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lockstep.machine.memory_pressure import read_memory_pressure
from lockstep.rank.checkpoint.finite import may_be_infinite
from lockstep.rank.checkpoint.tensor_file import Described, header, order_of

ALIGNMENT = mmap.PAGESIZE
"""Of the first byte of each file: disks read whole pages of memory."""


@dataclass(frozen=True)
class Place:
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
        # Pages are mapped by the first copy: each rank comes to its own share of them, side by side with the others.
        self._bytes = torch.frombuffer(mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED), dtype=torch.uint8)

    @classmethod
    def at(cls, place: Place) -> Mapped:
        """Map the memory of another process. Raises OSError where that is not possible, as on another node."""
        path = Path(f"/proc/{place.process}/fd/{place.descriptor}")
        if not str(path.readlink()).startswith(f"/memfd:{place.name} "):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(descriptor, place.size)
        finally:
            os.close(descriptor)

    def put(self, at: int, tensor: Tensor) -> None:
        """Copy a tensor, on any device, with any strides; `at` must be a multiple of its item size.

        What lies in one piece is copied by the C library: for large blocks it writes past the caches, torch does not.
        """
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            ctypes.memmove(self._bytes.data_ptr() + at, tensor.data_ptr(), tensor.nbytes)
        elif tensor.numel():
            self._bytes[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())


class StateMemory:
    """A file without a name (memfd) that other processes can read and write. It grows, and never shrinks."""

    def __init__(self) -> None:
        self._name = f"lockstep-state-{secrets.token_hex(8)}"
        self.descriptor = os.memfd_create(self._name, os.MFD_CLOEXEC)
        self.mapped: Mapped | None = None
        """None while nothing is reserved."""
        self._size = 0

    @property
    def place(self) -> Place:
        return Place(self._name, os.getpid(), self.descriptor, self._size)

    def reserve(self, size: int) -> None:
        """Let there be `size` bytes, with their pages.

        Raises:
            OSError: when there is not so much memory.
        """
        if size <= self._size:
            return
        if size - self._size > (read_memory_pressure().available_bytes or size):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        os.posix_fallocate(self.descriptor, 0, size)
        self.mapped, self._size = None, 0  # nothing is mapped if the next line raises
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
