"""The sum over a step's lanes of a tensor that each lane made, with the same bits on any number of ranks.

A code book's counts, a teacher's centre, class means: what is added up lane by lane on each rank, and then over ranks, has
other roundings on other numbers of ranks. Here the lanes are added in the lane tree's order, as gradients are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import UsageError
from lockstep.protocol.layout.tree import merged
from lockstep.rank.caller import where
from lockstep.rank.run.loop.whole_batch import HALVES
from lockstep.rank.run.position.region import Region
from lockstep.rank.run.run_state import RunState

CALL = "run.lane_sum"
FORM = "    made = []\n    for batch in step:\n        ...\n        made.append(tensor)\n    total = run.lane_sum(made)"


def lane_sum(run: RunState, made: Sequence[Tensor]) -> Tensor:
    """See `Run.lane_sum`."""
    run.progress.position.require_same_on_every_rank(CALL)
    _refuse_places(run)
    if not isinstance(made, (list, tuple)) or not all(isinstance(one, Tensor) for one in made):
        raise UsageError(
            f"{CALL} takes a list with one tensor for each lane, but got {_shown(made)}.", f"Collect them:\n{FORM}"
        )
    placement, transport = run.setup.placement, run.machinery.transport
    samples = run.progress.position.lane_samples
    lanes = [lane for lane in run.setup.lanes if samples[lane]]
    forms = [[list(one.shape), str(one.dtype), one.device.type] for one in made]
    shape, dtype, device = _agreed(transport.all_gather_object([forms, len(lanes)], CALL, where()))
    device = next((one for one in (*(one.device for one in made), run.setup.device) if one.type == device), device)
    zeros = torch.zeros(shape, dtype=torch.float32 if dtype in HALVES else dtype, device=device).view(-1)
    of_lane = dict(zip(lanes, made, strict=True))

    values = {
        lane: of_lane[lane].detach().to(zeros.dtype, copy=True).reshape(-1).contiguous()
        if lane in of_lane
        else zeros.clone()
        for lane in run.setup.lanes
    }
    total = torch.empty_like(zeros)
    transport.all_reduce(merged(values, placement.subtrees(transport.rank)), placement, total)
    return total.to(dtype).view(shape)


def _refuse_places(run: RunState) -> None:
    mesh = run.setup.mesh
    if mesh.stages > 1 or mesh.asynchronous:
        raise UsageError(
            f"{CALL} needs every lane's tensor on the rank of the lane, which {run.machinery.strategy.name} does not have.",
            "Use --strategy ddp or zero1.",
        )
    if run.progress.position.region is not Region.STEP:
        raise UsageError(f"{CALL} was called outside a step.", f"Call it after the step's lanes:\n{FORM}")


def _shown(made: Any) -> str:
    if isinstance(made, Tensor):
        return f"a tensor of shape {tuple(made.shape)}"
    return type(made).__name__ if not isinstance(made, (list, tuple)) else "a list of something else"


def _agreed(told: Sequence[tuple[Sequence[Any], int]]) -> tuple[list[int], torch.dtype, Any]:
    """Shape, dtype and kind of device of what all ranks' lanes made; `UsageError` on every rank where they differ."""
    for rank, (forms, num_lanes) in enumerate(told):
        if len(forms) != num_lanes:
            raise UsageError(
                f"{CALL} got {len(forms)} tensors on rank {rank}, which has {num_lanes} lanes with samples in this step.",
                f"Make one tensor in each lane, in a list that is empty when the step begins:\n{FORM}",
            )
    forms = [form for of_rank, _ in told for form in of_rank]
    if any(form != forms[0] for form in forms):
        raise UsageError(
            f"{CALL} needs tensors of the same shape, dtype and kind of device in every lane, but there are "
            f"{forms[0][:2]} and {next(form[:2] for form in forms if form != forms[0])}.",
            "Add up the lane's samples first: tensor.sum(0).",
        )
    shape, name, device = forms[0]
    dtype = getattr(torch, name.removeprefix("torch."))
    if dtype is torch.bool or dtype.is_complex:
        raise UsageError(f"{CALL} cannot add up tensors of dtype {name}.", "Convert them to float32 or int64.")
    return shape, dtype, device
