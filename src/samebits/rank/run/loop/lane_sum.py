"""The sum over a step's lanes of a tensor that each lane made, or all of them in a row, with the same bits on any number of ranks.

A code book's counts, a teacher's centre, class means: what is added up lane by lane on each rank, and then over ranks, has
other roundings on other numbers of ranks. Here the lanes are added in the lane tree's order, as gradients are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.machine.torch_private import pytree
from samebits.protocol.layout.lane_tree import merged
from samebits.rank.caller import where
from samebits.rank.position.moment import Region
from samebits.rank.position.run_state import RunState
from samebits.rank.strategy.pass_loss import check_loss
from samebits.rank.transport.contract import Transport

Words = tuple[str, str]
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class LaneFeatures:
    """What `features_of` returned for one lane: tensors of any number of rows, with their graph, and their structure."""

    tensors: list[Tensor]
    form: str

    @classmethod
    def of(cls, value: Any) -> LaneFeatures:
        """Take what `features_of` returned; raise `UsageError` for what cannot be gathered."""
        leaves, form = pytree.tree_flatten(value)
        if not leaves or any(not isinstance(leaf, Tensor) or not leaf.dim() for leaf in leaves):
            shown = ", ".join(_as_words(leaf) for leaf in leaves) or "nothing"
            raise UsageError(
                f"With over_batch= the first function must return the features of a lane, but it returned {shown}.",
                "Return tensors with one row per sample, alone or in a tuple, list or dict.",
            )
        try:
            return cls(leaves, pytree.treespec_dumps(form))
        except (TypeError, NotImplementedError) as error:
            raise UsageError(
                f"The features of a lane may only be in a tuple, list or dict ({error}).",
                "Return tensors in one of these.",
            ) from None


def _as_words(leaf: Any) -> str:
    return f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__


class WholeBatch:
    """The features of all lanes, from those of this rank in lane order. Collective: construct it on every rank.

    Raises:
        UsageError: on every rank, when lanes returned features of different structures, shapes or dtypes.
    """

    def __init__(self, lanes: Sequence[LaneFeatures], transport: Transport, device: torch.device, words: Words) -> None:
        self._lanes, self._device, (call, what) = lanes, device, words
        gathered = transport.all_gather_object([_described(lane) for lane in lanes], f"{what} of the batch", where())
        described = [lane for rank in gathered for lane in rank]
        if any(lane["form"] != described[0]["form"] or lane["kinds"] != described[0]["kinds"] for lane in described):
            raise UsageError(
                f"{call} needs {what} of the same structure, shape and dtype in every lane.",
                "Let only the number of rows differ.",
            )
        self.num_terms = sum(not number or any(lane["needs"]) for number, lane in enumerate(described))
        """Lanes that a gradient goes through; always the first one, for what the loss uses besides features."""
        self.is_first = bool(lanes) and not any(gathered[rank] for rank in range(transport.rank))
        """Whether the first lane with samples is on this rank."""
        self._form = described[0]["form"]
        self._leaves: list[Tensor] = []
        self._rows: list[list[tuple[int, int]]] = []
        """For each tensor and lane of this rank, its rows of the whole."""
        for number, (dtype, shape) in enumerate(described[0]["kinds"]):
            rows = [[lane["rows"][number] for lane in rank] for rank in gathered]
            needs = any(lane["needs"][number] for lane in described)
            self._gather(number, getattr(torch, dtype), shape, rows, transport, needs)

    def _gather(  # noqa: PLR0917 - what describes one tensor
        self,
        number: int,
        dtype: torch.dtype,
        shape: list[int],
        rows: list[list[int]],
        transport: Transport,
        needs: bool,
    ) -> None:
        padded = torch.zeros((max(map(sum, rows)), *shape), dtype=dtype, device=self._device)
        mine = rows[transport.rank]
        if mine:
            padded[: sum(mine)] = torch.cat([lane.tensors[number].detach() for lane in self._lanes])
        pieces = [part[: sum(count)] for part, count in zip(transport.all_gather(padded), rows, strict=True)]
        whole = torch.cat(pieces)
        # Small gradients of a loss vanish in 16 bits.
        if needs:
            whole = whole.float() if dtype in HALVES else whole
            whole.requires_grad_()
        self._leaves.append(whole)
        start = sum(sum(count) for count in rows[: transport.rank])
        ends = [start + sum(mine[: lane + 1]) for lane in range(len(mine))]
        self._rows.append(list(zip([start, *ends][: len(mine)], ends, strict=True)))

    def features(self) -> Any:
        """All lanes' features, in the order of the batch, in the structure and the dtypes in which they came."""
        dtypes = (
            [lane.dtype for lane in self._lanes[0].tensors] if self._lanes else [leaf.dtype for leaf in self._leaves]
        )
        tensors = [leaf.to(dtype) for leaf, dtype in zip(self._leaves, dtypes, strict=True)]
        return pytree.tree_unflatten(tensors, pytree.treespec_loads(self._form))

    def terms(self, loss: Tensor, scale: float) -> list[Tensor | None]:
        """For each lane of this rank, what to call backward on with weight 1; None where no gradient goes through it.

        Args:
            loss: over the whole batch: a scalar, computed from `features`.
            scale: what losses are multiplied by before their gradients are taken (16-mixed).
        """
        needed = [leaf for leaf in self._leaves if leaf.requires_grad]
        found = torch.autograd.grad(loss * scale, needed, retain_graph=True, allow_unused=True) if needed else ()
        gradients = iter(found)
        with_leaves = [next(gradients) if leaf.requires_grad else None for leaf in self._leaves]
        value = loss.detach()
        terms: list[Tensor | None] = []
        for position, lane in enumerate(self._lanes):
            is_first = self.is_first and not position
            if not is_first and not any(tensor.requires_grad for tensor in lane.tensors):
                terms.append(None)
                continue
            # [Note: a loss over the batch as one term for each lane]
            # A pass takes the mean over its terms. `part - part.detach()` is 0 with the gradient of `part`, so each term
            # shows the loss of the whole batch, and the mean has the gradient of the sum of all parts.
            part = self._part(lane, position, with_leaves, 1.0 / scale)
            part = part + loss if is_first else part
            terms.append(value + self.num_terms * (part - part.detach()))
        return terms

    def _part(self, lane: LaneFeatures, position: int, gradients: Sequence[Tensor | None], unscale: float) -> Tensor:
        """A scalar whose gradient is that of the loss by way of this lane's features."""
        total = lane.tensors[0].new_zeros((), dtype=torch.float32)
        for tensor, gradient, rows in zip(lane.tensors, gradients, self._rows, strict=True):
            if gradient is not None and tensor.requires_grad:
                start, end = rows[position]
                total = total + (tensor.to(gradient.dtype) * (gradient[start:end] * unscale)).sum()
        return total


def terms_over_batch(
    run: RunState,
    lanes: Sequence[LaneFeatures],
    loss_of: Callable[[Any], Tensor],
    words: Words = ("over_batch=", "features"),
) -> list[Tensor | None]:
    """A loss over the whole batch as one term for each lane of this rank; `words`: the call, and what lanes made. Collective."""
    whole = WholeBatch(lanes, run.components.transport, run.config.device, words)
    run.components.checks.enter_loss_over_batch()
    with run.loop_state.position.loss_over_batch(), run.components.strategy.precision.inside():
        loss = loss_of(whole.features())
    run.components.checks.leave_loss_over_batch()
    check_loss(loss, None)
    return whole.terms(loss, run.components.scaler.value if run.components.scaler is not None else 1.0)


def _described(lane: LaneFeatures) -> dict[str, Any]:
    return {
        "form": lane.form,
        "kinds": [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape[1:])] for tensor in lane.tensors],
        "rows": [len(tensor) for tensor in lane.tensors],
        "needs": [tensor.requires_grad for tensor in lane.tensors],
    }


CALL, CAT = "run.lane_sum", "run.lane_cat"
FORM = "    made = []\n    for batch in step:\n        ...\n        made.append(tensor)\n    total = {}(made)"


def lane_sum(run: RunState, made: Sequence[Tensor]) -> Tensor:
    """See `Run.lane_sum`."""
    lanes = _lanes_of(run, made, CALL)
    placement, transport = run.config.placement, run.components.transport
    forms = [[list(one.shape), str(one.dtype), one.device.type] for one in made]
    gathered = transport.all_gather_object([forms, len(lanes)], CALL, where())
    shape, dtype, device = _agreed(gathered, CALL)
    if dtype is torch.bool or dtype.is_complex:
        raise UsageError(f"{CALL} cannot add up tensors of dtype {dtype}.", "Convert them to float32 or int64.")
    device = next((one for one in (*(one.device for one in made), run.config.device) if one.type == device), device)
    zeros = torch.zeros(shape, dtype=torch.float32 if dtype in HALVES else dtype, device=device).view(-1)
    of_lane = dict(zip(lanes, made, strict=True))

    values = {
        lane: of_lane[lane].detach().to(zeros.dtype, copy=True).reshape(-1).contiguous()
        if lane in of_lane
        else zeros.clone()
        for lane in run.config.lanes
    }
    total = torch.empty_like(zeros)
    transport.all_reduce(merged(values, placement.subtrees(transport.rank)), placement, total)
    return total.to(dtype).view(shape)


def lane_cat(run: RunState, made: Sequence[Tensor]) -> Tensor:
    """See `Run.lane_cat`."""
    lanes = _lanes_of(run, made, CAT)
    transport = run.components.transport
    # Rows may differ: each lane has its own number.
    forms = [[list(one.shape[1:]) if one.dim() else None, str(one.dtype), one.device.type] for one in made]
    gathered = transport.all_gather_object(
        [forms, len(lanes), [len(one) if one.dim() else 0 for one in made]], CAT, where()
    )
    shape, dtype, device = _agreed([one[:2] for one in gathered], CAT)
    if shape is None:
        raise UsageError(
            f"{CAT} puts rows behind each other, but got tensors without a dimension.", "Use tensor.view(1)."
        )
    counts = [sum(rows) for _, _, rows in gathered]
    device = next((one for one in (*(one.device for one in made), run.config.device) if one.type == device), device)
    padded = torch.zeros((max(counts), *shape), dtype=dtype, device=device)
    if made:
        padded[: counts[transport.rank]] = torch.cat([one.detach() for one in run.in_loop_order(made)])
    return torch.cat([part[:count] for part, count in zip(transport.all_gather(padded), counts, strict=True)])


def _lanes_of(run: RunState, made: Sequence[Tensor], call: str) -> list[int]:
    """This rank's lanes that have samples, in the loop's order; `UsageError` where the call may not be made, or `made` is something else."""
    run.loop_state.position.require_same_on_every_rank(call)
    _refuse_places(run, call)
    if not isinstance(made, (list, tuple)) or not all(isinstance(one, Tensor) for one in made):
        raise UsageError(
            f"{call} takes a list with one tensor for each lane, but got {_shown(made)}.",
            f"Collect them:\n{FORM.format(call)}",
        )
    samples = run.loop_state.position.lane_samples
    return [*run.in_loop_order([lane for lane in run.config.lanes if samples[lane]])]


def _refuse_places(run: RunState, call: str) -> None:
    mesh = run.config.mesh
    if mesh.stages > 1 or mesh.asynchronous:
        raise UsageError(
            f"{call} needs every lane's tensor on the rank of the lane, which {run.components.strategy.name} does not have.",
            "Use --strategy ddp or zero1.",
        )
    if run.loop_state.position.region is not Region.STEP:
        raise UsageError(f"{call} was called outside a step.", f"Call it after the step's lanes:\n{FORM.format(call)}")


def _shown(made: Any) -> str:
    if isinstance(made, Tensor):
        return f"a tensor of shape {tuple(made.shape)}"
    return type(made).__name__ if not isinstance(made, (list, tuple)) else "a list of something else"


def _agreed(gathered: Sequence[Any], call: str) -> tuple[Any, torch.dtype, Any]:
    """Shape, dtype and kind of device of what all ranks' lanes made; `UsageError` on every rank where they differ."""
    for rank, (forms, num_lanes) in enumerate(gathered):
        if len(forms) != num_lanes:
            raise UsageError(
                f"{call} got {len(forms)} tensors on rank {rank}, which has {num_lanes} lanes with samples in this step.",
                f"Make one tensor in each lane, in a list that is empty when the step begins:\n{FORM.format(call)}",
            )
    forms = [form for of_rank, _ in gathered for form in of_rank]
    if any(form != forms[0] for form in forms):
        raise UsageError(
            f"{call} needs tensors of the same shape, dtype and kind of device in every lane, but there are "
            f"{forms[0][:2]} and {next(form[:2] for form in forms if form != forms[0])}.",
            "Add up the lane's samples first: tensor.sum(0).",
        )
    shape, name, device = forms[0]
    return shape, getattr(torch, name.removeprefix("torch.")), device
