"""Each lane's first gradients, written for the row `plain` of `lockstep verify` (read by `verify.plain`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.machine.torch_private import BatchNorm
from lockstep.rank.recording.calm import autocast_dtypes
from lockstep.rank.recording.evidence_file import dtype_name, stride_of
from lockstep.rank.strategy.contract import LaneObserver


class LaneGradients(LaneObserver):
    """The gradients of each lane's first pass.

    Args:
        folder: the evidence folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lanes: dict[int, dict[str, Any]] = {}

    def has_gradients(self, lane: int, gradients: Sequence[Tensor], weight: float, explicit: bool) -> None:
        if self._lanes.get(lane, {}).get("weight"):  # 0: it has only been looked at, for `over_batch=`
            return
        self._lanes[lane] = {
            "weight": weight,
            "explicit": explicit,
            "dtypes": [dtype_name(flat) for flat in gradients],
        }
        values = torch.cat([flat.detach().float().cpu() for flat in gradients])
        values[:: stride_of(values.numel())].contiguous().numpy().tofile(self._folder / f"lane-{lane:05d}.f32")

    def after_first_pass(self, models: Sequence[nn.Module]) -> None:
        """Write them, once all lanes of the first pass are done."""
        norms = [module for model in models for module in model.modules() if isinstance(module, BatchNorm)]
        told = {"lanes": self._lanes, "batch_norms": len(norms), "autocast": autocast_dtypes()}
        (self._folder / "lanes.json").write_text(json.dumps(told))
