"""Copying batches to a GPU on a separate stream, while the compute stream works on the previous batch.

Two rules keep it safe. The compute stream waits for the copy's event before it reads the batch; and the allocator is
told that the compute stream uses the copy's memory (`record_stream`), so the next copy does not get it while kernels
that read it are still queued. The pinned source is kept until the copy is handed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lockstep.rank.data.move import tensors_in, to_device
from lockstep.rank.data.pinning import pinned

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Copy:
    """A batch on its way."""

    source: Any
    batch: Any
    """On the device once `done` has happened."""
    done: Any
    """An event on the copying stream; None when the copy was made on the compute stream."""


class CopyStream:
    """One rank's copying stream. Nothing but its two methods knows about streams and events.

    Args:
        device: where batches go; the process's current device of its kind.
        streams: torch's module for such devices (`torch.cuda`, `torch.cpu`), with Stream, stream and current_stream.
    """

    def __init__(self, device: torch.device, streams: Any = None) -> None:
        self._device = device
        self._streams = torch.get_device_module(device) if streams is None else streams
        self._copying = self._streams.Stream()

    def begin(self, batch: Any) -> Copy:
        """Queue the copy of a batch; what is on the device already stays there.

        A batch with tensors of another device, or inside objects that move themselves, is copied on the compute stream:
        nothing here knows what must wait for what.
        """
        tensors = tensors_in(batch)
        places = {tensor.device for tensor in tensors or ()}
        if tensors is not None and CPU not in places and places <= {self._device}:
            return Copy(None, batch, None)
        if self._device.type == "cuda":
            batch = pinned(batch)
        if tensors is None or not places <= {self._device, CPU}:
            return Copy(None, to_device(batch, self._device), None)
        with self._streams.stream(self._copying):
            moved = to_device(batch, self._device)
            done = self._copying.record_event()
        return Copy(batch, moved, done)

    def hand_over(self, copy: Copy) -> Any:
        """Return the batch for the compute stream; work queued there from now on sees it complete. Does not block."""
        if copy.done is not None:
            compute = self._streams.current_stream()
            compute.wait_event(copy.done)
            for tensor in tensors_in(copy.batch) or []:
                if tensor.is_cuda:
                    tensor.record_stream(compute)
        return copy.batch
