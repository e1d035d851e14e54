"""The random streams of a process: torch, NumPy and `random`, set together from one 64-bit key.

Only global generators are covered; a data set or a model with a generator of its own is outside (`docs/guarantees.md`).
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from samebits.protocol.layout.stream_key import Domain, stream_key


def gpu_generators() -> Sequence[Generator]:
    """One for each GPU that this process may use; a module may span several. None before CUDA is initialised."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    return tuple(torch.cuda.default_generators)


def generators() -> Sequence[Generator]:
    """All of them; the CPU's is the first."""
    return (torch.default_generator, *gpu_generators())


def states() -> list[Tensor]:
    """Where each stands, as tensors of the CPU. No device is waited for."""
    return [generator.get_state() for generator in generators()]


NOT_TORCHS = 0x9E3779B9
"""Keeps NumPy's seed apart from torch's when the key is below 2^32."""


def seed_process(key: int) -> None:
    """Set the CPU streams of this process. A module-level function, so that it can be sent to loader workers."""
    # [Note: how the streams of a lane are seeded in 6 µs]
    # torch takes 1, NumPy 2, random 3; 35 together when other work has emptied the caches. `torch.manual_seed` alone would
    # cost 95, and a NumPy seed of more than 32 bits 7 and 70. torch's CPU generator takes the lower half of the key and has
    # NumPy's algorithm, so NumPy gets 32 other bits.
    torch.default_generator.manual_seed(key)
    np.random.seed((key >> 32) ^ (key & 0xFFFFFFFF) ^ NOT_TORCHS)
    random.seed(key)


class Streams:
    """The streams of one rank.

    Args:
        seed: the run's seed.
        device: when it is a CUDA device, the generators of all GPUs are seeded too.
        looks: whether `look` does anything: on one rank there is nobody to compare with.
    """

    def __init__(self, seed: int, device: torch.device, *, looks: bool = False) -> None:
        self._looks = looks
        self.seed = seed
        self._device = device
        self._has_gpus = device.type == "cuda"
        self.seen = 0
        """Equal on two ranks if they had drawn the same wherever `look` was called."""
        self._torch_seed = 0

    @classmethod
    def started(cls, seed: int, device: torch.device, *, looks: bool) -> Streams:
        """From here on all ranks draw the same, whatever they drew before."""
        streams = cls(seed, device, looks=looks)
        streams.enter(Domain.START)
        return streams

    def enter(self, domain: Domain, *place: int | str) -> None:
        """From here on, draw from the stream of `domain` at `place`."""
        key = stream_key(self.seed, domain, *place)
        seed_process(key)
        self._torch_seed = key
        if self._has_gpus:
            for generator in gpu_generators():
                generator.manual_seed(key)

    def _on_gpus(self) -> Sequence[torch.Generator]:
        """Those of all GPUs, not of the rank's own only: a model may span several."""
        return gpu_generators() if self._has_gpus else ()

    def look(self) -> int:
        """Note where the current streams are, by the next number of each; return `seen`.

        Call it before leaving them: it moves them.
        """
        if not self._looks:
            return self.seen
        # A few bytes drawn stand for states of kilobytes.
        numbers = struct.pack(
            "<IQ", random.getrandbits(32), int(torch.empty((), dtype=torch.int64, device="cpu").random_())
        )
        self.seen = zlib.crc32(np.random.bytes(4) + numbers, self.seen)
        return self.seen

    def was_seeded(self) -> bool:
        """Whether somebody has called `torch.manual_seed` since `enter`, and nobody has put the stream back."""
        return torch.default_generator.initial_seed() != self._torch_seed

    def snapshot(self) -> dict[str, Any]:
        """The current state of every stream, for `restore` in this process or another."""
        on_gpus = [generator.get_state() for generator in self._on_gpus()]
        return {
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(legacy=False),
            "python": random.getstate(),
            "device": on_gpus[self._device.index] if on_gpus else None,
            **({"devices": on_gpus} if len(on_gpus) > 1 else {}),
        }

    def restore(self, saved: Mapping[str, Any], step: int) -> None:
        """Continue from a snapshot. A device of a different kind than then starts from a stream keyed by `step`.

        The rank's own GPU continues where that of the rank did which made the snapshot, whatever their numbers are.
        """
        self.enter(Domain.STEP, step, "restored")
        torch.set_rng_state(saved["torch"])
        np.random.set_state(saved["numpy"])
        random.setstate(saved["python"])
        on_gpus = self._on_gpus()
        for generator, state in zip(on_gpus, saved.get("devices", []), strict=False):
            generator.set_state(state)
        if on_gpus and saved["device"] is not None:
            on_gpus[self._device.index].set_state(saved["device"])

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Leave the current streams where they were, whatever is drawn inside."""
        cpu, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
        on_gpus = self._on_gpus()
        states = [generator.get_state() for generator in on_gpus]
        try:
            yield
        finally:
            torch.set_rng_state(cpu)
            np.random.set_state(numpy_state)
            random.setstate(python_state)
            for generator, state in zip(on_gpus, states, strict=True):
                generator.set_state(state)
