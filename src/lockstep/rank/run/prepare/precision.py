"""From the precision's name to what computes in it, on this rank's device."""

from __future__ import annotations

import torch

from lockstep.errors import UsageError
from lockstep.notices import say
from lockstep.protocol.environment import RankEnvironment
from lockstep.rank.strategy.loss_scale import LossScale
from lockstep.rank.strategy.precision import Precision

FAST_FP16 = ("avx512_fp16", "amx_fp16", "fp16")
"""Capabilities (as torch names them) of a CPU that multiplies in float16 itself."""


def make_precision(name: str, device: torch.device, environment: RankEnvironment) -> Precision:
    """Make the precision called `name`; say once where the device has no units of its own for it.

    In the row `plain` of `lockstep verify` the loss is not scaled, because gradients are compared as they are.

    Raises:
        UsageError: when the device does not support the dtype.
    """
    plain = bool(environment.settings and environment.settings.evidence.get("plain"))
    if name == "bf16-mixed" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UsageError(
            f"{torch.cuda.get_device_name(device)} has no bfloat16, which bf16-mixed needs.", "Use 16-mixed."
        )
    if name == "16-mixed" and device.type == "cpu" and environment.position.rank == 0 and not _cpu_has_fp16():
        say(
            "this CPU has no float16 units, so 16-mixed is correct but slow here (matrix products were measured "
            "24 times slower than in float32). Use bf16-mixed, or a GPU."
        )
    return Precision(name, device.type, LossScale() if name == "16-mixed" and not plain else None)


def _cpu_has_fp16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in FAST_FP16)
