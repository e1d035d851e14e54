"""Anonymous memory in which a state lies while it is written: mapped and filled once, used for every state."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from lockstep.checkpoint.tensor_file import Described, header, order_of
from lockstep.machine.memory_pressure import read_memory_pressure

ALIGNMENT = 64
"""Of the first byte of each file: that of a cache line."""


class StateMemory:
    """A file without a name (memfd) that another process can read. It grows, and never shrinks."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("lockstep-state", os.MFD_CLOEXEC)
        self._size = 0
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def reserve(self, size: int) -> None:
        """Let there be `size` bytes, with their pages, so that copying waits for no page.

        Raises:
            OSError: when there is not so much memory.
        """
        if size <= self._size:
            return
        if size - self._size > (read_memory_pressure().available_bytes or size):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        os.posix_fallocate(self.descriptor, 0, size)
        self._bytes, self._size = torch.empty(0, dtype=torch.uint8), 0  # nothing is mapped if the next line raises
        mapped = mmap.mmap(self.descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._bytes, self._size = torch.frombuffer(mapped, dtype=torch.uint8), size

    def put(self, at: int, data: bytes) -> None:
        """Write plain bytes."""
        os.pwrite(self.descriptor, data, at)

    def put_tensor(self, at: int, tensor: Tensor, described: Described) -> None:
        """Write the values of `tensor`, on any device, with any strides; `at` must be a multiple of its item size.

        What lies in one piece is copied by the C library: for large blocks it writes past the caches, torch does not.
        """
        size = described.size_bytes
        if not size:
            return
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            ctypes.memmove(self._bytes.data_ptr() + at, tensor.data_ptr(), size)
            return
        self._bytes[at : at + size].view(described.dtype).view(described.shape).copy_(tensor.detach())

    def close(self) -> None:
        """Let go of it."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        with suppress(OSError):
            os.close(self.descriptor)


class FileImage:
    """Where the parts of one safetensors file lie in memory.

    Args:
        at: the file's first byte, a multiple of `ALIGNMENT`.
        described: its tensors.
    """

    def __init__(self, at: int, described: Mapping[str, Described]) -> None:
        self.at, self.header = at, header(described)
        self.order = order_of(described)
        self.places: dict[str, int] = {}
        """The first byte of each tensor, in the order of the file."""
        end = at + len(self.header)
        for name in self.order:
            self.places[name] = end
            end += described[name].size_bytes
        self.size = end - at

    @property
    def end(self) -> int:
        """The first byte behind it where another file may begin."""
        return -(-(self.at + self.size) // ALIGNMENT) * ALIGNMENT
