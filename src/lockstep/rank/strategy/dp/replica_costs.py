"""What `dp` pays in every forward: copies of the model, and memory on the first device, which gathers all outputs.

It is measured on the available devices. On the CPU, replicas share the parameters, and only buffers are copied.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import replicate

from lockstep.rank.strategy.dp.split_forward import replicas

REPEATS = 5


@dataclass(frozen=True)
class ReplicaCosts:
    """The costs of one forward on several devices."""

    copied_bytes: int
    """Bytes copied to the replicas before the forward begins: parameters and buffers on GPUs, buffers on the CPU."""
    replicate_s: float
    """The time that this takes; median of `REPEATS`."""
    forward_s: float
    """The time of the whole forward, including the copying; median of `REPEATS`."""
    peak_bytes: tuple[int, ...]
    """The most bytes that tensors held on each device during the forwards; empty on the CPU."""


def measure_replica_costs(
    model: nn.Module, devices: Sequence[torch.device], forward: Callable[[], Any]
) -> ReplicaCosts:
    """Measure a model that `dp` has prepared.

    Args:
        model: on the first of the devices.
        devices: the replicas'.
        forward: calls `model` with a batch; it is called `REPEATS` + 1 times.
    """
    on_gpus = devices[0].type == "cuda"
    parameters = [] if not on_gpus else list(model.parameters())
    copied = sum(tensor.nbytes for tensor in [*parameters, *model.buffers()]) * (len(devices) - 1)
    forward()
    for device in devices if on_gpus else ():
        torch.cuda.reset_peak_memory_stats(device)
    copy: Callable[[], Any] = (lambda: replicate(model, devices)) if on_gpus else lambda: replicas(model, len(devices))
    return ReplicaCosts(
        copied_bytes=copied,
        replicate_s=_median_s(copy, devices),
        forward_s=_median_s(forward, devices),
        peak_bytes=tuple(torch.cuda.max_memory_allocated(device) for device in devices) if on_gpus else (),
    )


def _median_s(work: Callable[[], Any], devices: Sequence[torch.device]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        kept = work()
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
        del kept
    return statistics.median(times)
