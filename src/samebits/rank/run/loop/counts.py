"""What a step's losses are divided by, where each has a count of its own: boxes, pixels, tokens of the whole batch.

A mean over lanes with one weight is the mean over the batch for one count only. Two losses with two counts need the totals
before the first backward. Counts that a batch has are asked of every lane first (`step.backward(loss_of, counts=)`). Those
that come out of the forward, and those of a script's own loop over lanes, come with the losses (`run.backward(losses,
counts=)`): then all lanes are computed, the graphs stay until the totals are known, and each lane has its backward in
a second pass, as with a loss over the batch. The gradient is the sum over the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.machine.torch_private import pytree
from samebits.protocol.layout.lane_tree import tree_sum
from samebits.rank.caller import where
from samebits.rank.position.run_state import RunState
from samebits.rank.run.loop.lane_sum import LaneFeatures, terms_over_batch

FORM = (
    "    step.backward(loss_of, counts=lambda batch: {'boxes': boxes_in(batch), 'pixels': pixels_in(batch)})\n"
    "    def loss_of(batch, totals):\n"
    "        return class_sum / max(totals['boxes'], 1) + mask_sum / max(totals['pixels'], 1)"
)


WITH_LOSSES = "    run.backward((class_sum, box_sum), counts=(num_pixels, num_boxes))"
FROM_LOOP = "run.backward(counts=)"


def refuse_whole_batch(run: RunState, *, over_batch: bool, counts: bool, call: str = "over_batch=") -> None:
    """Raise `UsageError` where `step.backward` cannot do what it was asked for."""
    mesh, name = run.config.mesh, run.components.strategy.name
    if over_batch and counts:
        raise UsageError(
            "step.backward got over_batch= and counts=.", "Use over_batch= alone: its loss sees the whole batch."
        )
    if over_batch and (mesh.stages > 1 or mesh.asynchronous):
        raise UsageError(
            f"{call} needs the whole model and all lanes of the batch, which {name} does not have on any one rank.",
            "Use --strategy ddp or zero1.",
        )
    if counts and mesh.asynchronous:
        raise UsageError(f"counts= needs all lanes at one time, which {name} does not have.", "Use --strategy ddp.")


def totals_of(run: RunState, batches: Mapping[int, Any], counts_of: Callable[[Any], Any]) -> Any:
    """The counts of all lanes, added in the tree's order: the same bits on every rank.

    Collective: call it on every rank, before the step's lanes.

    Args:
        batches: of this rank's lanes.
        counts_of: returns a batch's counts: a number, or a dict, list or tuple of numbers.

    Returns:
        Floats in the structure of the counts; None on a rank without lanes.

    Raises:
        UsageError: for what is no count, and where lanes count different things.
    """
    form: Any = None
    mine: dict[str, list[float]] = {}
    with run.loop_state.position.loss_over_batch():
        for lane, batch in batches.items():
            leaves, form = pytree.tree_flatten(counts_of(batch))
            mine[str(lane)] = [_number(leaf) for leaf in leaves]
    gathered = run.components.transport.all_gather_object(mine, "counts of the batch", where())
    # Ranks with stages of one replica have the same lanes, and the same counts.
    by_lane = {int(lane): counts for of_rank in gathered for lane, counts in of_rank.items()}
    if len(set(map(len, by_lane.values()))) > 1:
        raise UsageError(
            "counts= returned different numbers of counts for lanes of one step.",
            "Count the same things in every batch, 0 where there is none.",
        )
    if form is None:
        return None
    none = [0.0] * form.num_leaves
    columns = zip(*(by_lane.get(lane, none) for lane in range(run.config.placement.num_lanes)), strict=True)
    return pytree.tree_unflatten([tree_sum(column) for column in columns], form)


def _number(leaf: Any) -> float:
    if isinstance(leaf, (int, float)) or (isinstance(leaf, Tensor) and leaf.numel() == 1):
        number = float(leaf)
        if 0 <= number < float("inf"):
            return number
    shown = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) and leaf.numel() != 1 else repr(leaf)
    raise UsageError(
        f"counts= needs numbers of 0 or more, but got {shown}.", f"Count what each loss is divided by:\n{FORM}"
    )


def take_losses(run: RunState, losses: Any, counts: Any, weight: float | None) -> None:
    """Keep the open lane's losses with their graph until the counts of all lanes are known; see `Run.backward`.

    Raises:
        UsageError: for what is no loss or no count, a second call in the lane, and under strategies without whole models.
    """
    refuse_whole_batch(run, over_batch=True, counts=False, call=FROM_LOOP)
    if weight is not None:
        raise UsageError("run.backward got weight= and counts=.", f"Leave out weight=:\n{WITH_LOSSES}")
    open_pass, lane = run.loop_state.open_pass, run.loop_state.position.lane
    assert open_pass.lane is not None
    if lane in open_pass.counted:
        raise UsageError(
            f"One lane called {FROM_LOOP} twice.", f"Give it all losses of the lane at once:\n{WITH_LOSSES}"
        )
    kept = _with_counts(losses, counts, run.config.device)
    if run.config.placement.num_lanes == 1:
        open_pass.lane.backward(_divided(kept), None)
    else:
        open_pass.counted[lane] = LaneFeatures.of(kept)


def _with_counts(losses: Any, counts: Any, device: torch.device) -> dict[str, list[Tensor]]:
    """Losses and their counts, as tensors with one row."""
    losses, counts = _by_name(losses), _by_name(counts)
    if [*losses] != [*counts]:
        raise UsageError(
            f"run.backward got losses {[*losses]} and counts {[*counts]}.", f"Give each loss its count:\n{WITH_LOSSES}"
        )
    made: dict[str, list[Tensor]] = {"losses": [], "counts": []}
    for name, loss in losses.items():
        if not (loss.numel() == 1 if isinstance(loss, Tensor) else isinstance(loss, (int, float))):
            raise UsageError(f"{FROM_LOOP} needs scalar losses.", f"Take sums over the lane's items:\n{WITH_LOSSES}")
        # A lane without boxes may have the sum of nothing, which is no tensor.
        one = loss if isinstance(loss, Tensor) else torch.tensor(float(loss), device=device)
        made["losses"].append((one if one.dtype is torch.float64 else one.float()).reshape(1))
        made["counts"].append(torch.tensor([_number(counts[name])], dtype=torch.float64, device=one.device))
    return made


def _by_name(values: Any) -> dict[Any, Any]:
    if isinstance(values, dict):
        return {name: values[name] for name in sorted(values, key=str)}
    return dict(enumerate(values)) if isinstance(values, (list, tuple)) else {0: values}


def _divided(kept: Mapping[str, Sequence[Tensor]]) -> Tensor:
    """The sum of losses, each over the total of its counts; over 1 where that is 0. Rows are lanes."""
    totals = [count.sum() for count in kept["counts"]]
    parts = [
        loss.sum() / torch.where(total > 0, total, 1.0).to(loss.dtype)
        for loss, total in zip(kept["losses"], totals, strict=True)
    ]
    return sum(parts[1:], parts[0])


def terms_of_counted(run: RunState) -> dict[int, Tensor | None]:
    """What each lane of this rank that kept losses calls backward on. Collective: call it on every rank."""
    kept, run.loop_state.open_pass.counted = dict(sorted(run.loop_state.open_pass.counted.items())), {}
    terms = terms_over_batch(run, list(kept.values()), _divided, (FROM_LOOP, "losses"))
    return dict(zip(kept, terms, strict=True))


class CountedLoss:
    """A lane's part of a loss that is a sum over lanes, as a loss of which the weighted mean over lanes is taken.

    Args:
        loss_of: takes a batch and the totals.
        weights: of all lanes of the step, by which the mean is taken.
    """

    def __init__(
        self, run: RunState, loss_of: Callable[[Any, Any], Any], totals: Any, weights: Sequence[float]
    ) -> None:
        self._position, self._loss_of, self._totals = run.loop_state.position, loss_of, totals
        self._weights = weights

    def __call__(self, batch: Any) -> Any:
        loss = self._loss_of(batch, self._totals)
        # Exact where the lanes are equally large, and a power of two.
        factor = tree_sum(self._weights) / self._weights[self._position.lane]
        return loss * factor if isinstance(loss, Tensor) and factor != 1.0 else loss
