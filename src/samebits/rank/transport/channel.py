"""Messages of tensors between two ranks: each describes what it carries, so the receiver needs no prior knowledge.

A tensor arrives with its strides, because kernels (and so bits) may depend on them: a channels-last image stays
channels-last; an expanded gradient stays expanded, and travels as what it was expanded from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.rank.transport.contract import Sent, Transport

HEADER_BYTES = 1024
"""A header up to this size, less 8 bytes for its length, needs one message; a longer one needs two."""


class Channel:
    """One direction of messages; every pair of ranks has its own order.

    Args:
        tag: distinguishes this channel from others on the same transport.
        device: where received tensors live, unless they were sent from the CPU.
    """

    def __init__(self, transport: Transport, tag: int, device: torch.device) -> None:
        self._transport, self._tag, self._device = transport, tag, device
        self._under_way: list[tuple[Sent, Tensor]] = []

    def send(self, destination: int, words: Any, tensors: Sequence[Tensor] = ()) -> None:
        """Begin to send JSON words and tensors of any layout. Do not write to the tensors until `flush`."""
        bases = [_unexpanded(tensor.detach()) for tensor in tensors]
        described = [
            [str(base.dtype).removeprefix("torch."), base.shape, base.stride(), tensor.shape, base.device.type == "cpu"]
            for base, tensor in zip(bases, tensors, strict=True)
        ]
        data = json.dumps([words, described]).encode()
        first = len(data).to_bytes(8, "little") + data[: HEADER_BYTES - 8]
        self._send(torch.frombuffer(bytearray(first.ljust(HEADER_BYTES, b"\0")), dtype=torch.uint8), destination)
        if rest := data[HEADER_BYTES - 8 :]:
            self._send(torch.frombuffer(bytearray(rest), dtype=torch.uint8), destination)
        for base in bases:
            if base.numel():
                self._send(_flat(base), destination)

    def _send(self, data: Tensor, destination: int) -> None:
        self._under_way.append((self._transport.send(data, destination, self._tag), data))

    def receive(self, source: int) -> tuple[Any, list[Tensor]]:
        """Return the next message from `source`, waiting for it.

        Raises:
            PeerLost: when `source` is gone.
        """
        header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device="cpu")
        self._transport.receive(header, source, self._tag)
        raw = header.numpy().tobytes()
        size = int.from_bytes(raw[:8], "little")
        data = raw[8 : 8 + size]
        if size > len(data):
            rest = torch.empty(size - len(data), dtype=torch.uint8, device="cpu")
            self._transport.receive(rest, source, self._tag)
            data += rest.numpy().tobytes()
        words, described = json.loads(data)
        return words, [self._receive_tensor(source, *each) for each in described]

    def _receive_tensor(  # noqa: PLR0917 - the six words that describe a tensor
        self, source: int, dtype: str, size: list[int], stride: list[int], shape: list[int], on_cpu: bool
    ) -> Tensor:
        device = torch.device("cpu") if on_cpu else self._device
        base = torch.empty_strided(size, stride, dtype=getattr(torch, dtype), device=device)
        if base.numel():
            if is_dense(base):
                self._transport.receive(_flat(base), source, self._tag)
            else:
                packed = base.new_empty(base.numel())
                self._transport.receive(packed, source, self._tag)
                base.copy_(packed.view(base.shape))
        return base if list(base.shape) == shape else base.expand(shape)

    def flush(self) -> None:
        """Wait until everything that was sent is delivered."""
        for sent, _ in self._under_way:
            sent.wait()
        self._under_way.clear()


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill a block of memory without gaps or overlaps, in any order of dimensions."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _unexpanded(tensor: Tensor) -> Tensor:
    """Keep one element of every dimension along which all elements share the same memory."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _flat(tensor: Tensor) -> Tensor:
    """Return the elements in memory order as one contiguous row: a view if the tensor is dense, else a copy."""
    if is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    # Reshape alone would give a strided view of, say, every second column.
    return tensor.reshape(-1).contiguous()


class Scratch:
    """Buffers that are not in use."""

    def __init__(self) -> None:
        self._idle: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    def take(self, like: Tensor, size: int) -> Tensor:
        """A 1-D buffer of `size` elements, uninitialised."""
        idle = self._idle.get((size, like.dtype))
        return idle.pop() if idle else like.new_empty(size)

    def give_back(self, tensors: Iterable[Tensor]) -> None:
        """Let the next one have them."""
        for tensor in tensors:
            self._idle.setdefault((tensor.numel(), tensor.dtype), []).append(tensor)
