"""`single` and `ddp`: every rank holds the whole model; gradients are reduced after a pass's lanes.

Synchronisation hangs on gradients and not on `forward`, so any method of the model may be called, twice or not at all.
What a rank must tell the others about a pass (weights, losses, which parameters were used, buffers) travels in one
frame; then only the buckets that some lane used are reduced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.errors import UsageError
from lockstep.layout.placement import Placement
from lockstep.layout.tree import tree_sum
from lockstep.strategy.agreement import check_same_models, refuse_unsupported
from lockstep.strategy.arena import ParameterArena
from lockstep.strategy.buffers import BufferBank, BufferPass
from lockstep.strategy.contract import PassResult, StepCut, Strategy
from lockstep.strategy.gradients import PartialSums, Slot, SlotPool
from lockstep.strategy.norm import gradient_norm
from lockstep.transport.contract import Transport

RIGHT_FORM = (
    "for step in run.steps(loader):\n    for batch in step:\n        run.backward(loss_of(batch))\n"
    "    optimizer.step()\n    optimizer.zero_grad()"
)
"""The loop that the messages show."""


@dataclass
class _Lane:
    """The lane that is being computed."""

    lane: int
    slot: Slot
    versions: list[int]
    weight: float | None = None
    explicit: bool = False
    losses: list[Tensor] = field(default_factory=list)


@dataclass
class _Pass:
    """The pass that is being made on this rank."""

    cut: StepCut
    where: str
    sums: PartialSums
    buffers: BufferPass
    held: list[Tensor | None]
    """What `p.grad` was when the pass began."""
    used: list[bool]
    lane: _Lane | None = None
    lanes: list[dict[str, Any]] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    next_lane: int = 0


class Replica(Strategy):
    """Every rank holds the model.

    Args:
        transport: the ranks.
        placement: lanes on ranks.
    """

    def __init__(self, transport: Transport, placement: Placement) -> None:
        self.name = "single" if transport.world_size == 1 else "ddp"
        self.placement = placement
        self._transport = transport
        self._rules: dict[str, str] = {}
        self.on_lane: Callable[[int, Slot, float, bool], None] | None = None
        self._models: list[tuple[str, nn.Module]] = []
        self._hooks: list[Any] = []
        self._bank: BufferBank | None = None
        self._pass: _Pass | None = None
        self._in_backward = False
        self._result: Slot | None = None
        self._ever: dict[int, tuple[str, nn.Parameter]] = {}
        """Every parameter that a prepared model ever had, by identity; kept alive, so that no identity is used again."""

    def set_buffer_rules(self, rules: Mapping[str, str]) -> None:
        """Add rules for buffers that differ between lanes; see `lockstep.strategy.buffers`. Before `adopt`."""
        for pattern, rule in rules.items():
            if rule not in ("first", "mean"):
                raise UsageError(f'buffers={{"{pattern}": {rule!r}}}: the rule must be "first" or "mean".')
        self._rules |= rules

    def adopt(self, models: Sequence[nn.Module]) -> None:
        self._models = [(f"{type(model).__name__}{number or ''}", model) for number, model in enumerate(models)]
        refuse_unsupported(self._models)
        check_same_models(self._models, self._transport)
        self._lay_out()

    def _lay_out(self) -> None:
        """Lay out parameters, gradients and buffers anew; at `adopt`, and when a script changed its model."""
        held = {id(p): p.grad for _, model in self._models for p in model.parameters()}
        self._release_hooks()
        self._arena = ParameterArena(self._models)
        self._present = {id(parameter) for parameter in self._arena.parameters}
        for name, parameter in zip(self._arena.names, self._arena.parameters, strict=True):
            self._ever[id(parameter)] = (name, parameter)
        self._bank = BufferBank(self._models, self._rules)
        trainable = [
            (name, parameter)
            for name, parameter in zip(self._arena.names, self._arena.parameters, strict=True)
            if parameter.requires_grad
        ]
        self.names = [name for name, _ in trainable]
        self.trainable = [parameter for _, parameter in trainable]
        self._pool = SlotPool(self.trainable)
        self._result = None
        for number, parameter in enumerate(self.trainable):
            parameter.grad = held.get(id(parameter))
            hook = parameter.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]
            self._hooks.append(hook)

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        def gradient_arrived(_: Tensor) -> None:
            if not self._in_backward:
                raise UsageError(
                    "loss.backward() was called on a prepared model, so the gradient would miss the other lanes. "
                    f"Call run.backward(loss) inside the step's lanes:\n{RIGHT_FORM}"
                )
            assert self._pass is not None
            self._pass.used[number] = True

        return gradient_arrived

    def begin_pass(self, cut: StepCut, where: str) -> None:
        if self._arena.has_changed() or self._present_bank().has_changed():
            refuse_unsupported(self._models)
            check_same_models(self._models, self._transport)
            self._lay_out()
        held = [parameter.grad for parameter in self.trainable]
        if self._result is not None and all(gradient is None for gradient in held):
            self._pool.give_back(self._result)
        self._result = None
        scaled = self.placement.num_lanes > 1
        sums = PartialSums(self._pool, self.placement.subtrees(self._transport.rank), scaled)
        self._pass = _Pass(cut, where, sums, BufferPass(self._present_bank(), cut), held, [False] * len(self.trainable))
        self._pass.next_lane = self.placement.lanes(self._transport.rank).start

    def begin_lane(self, lane: int) -> None:
        current = self._present_pass()
        self._skip_lanes_before(lane)
        slot = self._pool.take()
        for parameter, view in zip(self.trainable, slot.views, strict=True):
            parameter.grad = view
        current.lane = _Lane(lane, slot, slot.versions())

    def backward(self, loss: Tensor, weight: float | None) -> None:
        lane = self._present_pass().lane
        assert lane is not None
        _check_loss(loss, weight)
        if (lane.losses and (weight is not None) != lane.explicit) or (lane.explicit and weight != lane.weight):
            raise UsageError(
                f"One lane called run.backward with weight={lane.weight if lane.explicit else None} and "
                f"weight={weight}, but a lane has one weight. Add the losses up and call run.backward once, or pass "
                f"the same weight each time."
            )
        self._check_untouched(lane)
        lane.explicit = weight is not None
        lane.weight = self._present_pass().cut.weights[lane.lane] if weight is None else float(weight)
        lane.losses.append(loss.detach())
        self._in_backward = True
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            self._in_backward = False
        lane.versions = lane.slot.versions()

    def end_lane(self) -> None:
        current = self._present_pass()
        lane = current.lane
        assert lane is not None
        self._check_untouched(lane)
        current.lane = None
        current.buffers.after_lane(lane.lane)
        weight = 0.0
        if lane.losses:
            assert lane.weight is not None
            weight = lane.weight
            current.lanes.append({"lane": lane.lane, "weight": weight, "explicit": lane.explicit})
            current.losses.append(torch.stack([loss.double() for loss in lane.losses]).sum())
        if self.on_lane is not None:
            self.on_lane(lane.lane, lane.slot, weight, lane.explicit)
        current.sums.add(lane.lane, lane.slot, weight)
        current.next_lane = lane.lane + 1

    def _check_untouched(self, lane: _Lane) -> None:
        moved = lane.versions != lane.slot.versions()
        if moved or any(p.grad is not view for p, view in zip(self.trainable, lane.slot.views, strict=True)):
            raise UsageError(
                "Gradients were changed inside a step's lanes (zero_grad, clipping or an optimizer step), where they "
                f"are not complete yet. Do this after the inner loop:\n{RIGHT_FORM}"
            )

    def _skip_lanes_before(self, end: int) -> None:
        """Lanes that are empty in this step count as zeros, on whichever rank."""
        current = self._present_pass()
        for lane in range(current.next_lane, end):
            current.sums.add(lane, None, 0.0)
        current.next_lane = max(current.next_lane, end)

    def end_pass(self, notes: Mapping[int, Any]) -> PassResult:
        current = self._present_pass()
        self._skip_lanes_before(self.placement.lanes(self._transport.rank).stop)
        losses = torch.stack(current.losses).tolist() if current.losses else []
        header = {
            "lanes": [{**lane, "loss": loss} for lane, loss in zip(current.lanes, losses, strict=True)],
            "used": format(sum(1 << number for number, used in enumerate(current.used) if used), "x"),
            "buffers": current.buffers.header(),
            "notes": {str(lane): note for lane, note in notes.items()},
        }
        started = time.perf_counter_ns()
        headers = self._transport.all_gather_object(header, "step", current.where)
        current.buffers.settle([h["buffers"] for h in headers], self._transport, self.placement)
        lanes = {lane["lane"]: lane for h in headers for lane in h["lanes"]}
        weights = self._weights(lanes)
        bits = 0
        for other in headers:
            bits |= int(other["used"], 16)
        used = [bool(bits >> number & 1) for number in range(len(self.trainable))]
        slot = self._reduce(current, used, weights)
        exchange_ns = time.perf_counter_ns() - started
        self._hand_over(current, slot, used)
        self._pass = None
        unused = tuple(name for name, is_used in zip(self.names, used, strict=True) if not is_used)
        told = {int(lane): note for h in headers for lane, note in h["notes"].items()}
        return PassResult(self._loss(lanes, weights), unused, dict(sorted(told.items())), exchange_ns)

    def _weights(self, lanes: Mapping[int, Mapping[str, Any]]) -> list[float]:
        if len({lane["explicit"] for lane in lanes.values()}) > 1:
            raise UsageError(
                "Some lanes called run.backward with weight= and some without, so they cannot be averaged. Pass "
                "weight= in every lane or in none."
            )
        weights = [lanes[lane]["weight"] if lane in lanes else 0.0 for lane in range(self.placement.num_lanes)]
        if lanes and not tree_sum(weights) > 0:
            raise UsageError("The weights of all lanes add up to 0. Pass weight= the number of items in the loss.")
        return weights

    def _loss(self, lanes: Mapping[int, Mapping[str, Any]], weights: Sequence[float]) -> float | None:
        if not lanes:
            return None
        if len(weights) == 1:
            return float(lanes[0]["loss"])
        terms = [lanes[lane]["loss"] * weights[lane] if lane in lanes else 0.0 for lane in range(len(weights))]
        return tree_sum(terms) / tree_sum(weights)

    def _reduce(self, current: _Pass, used: Sequence[bool], weights: Sequence[float]) -> Slot:
        """Reduce the buckets that some lane used; the result stands in the returned slot."""
        needed = [bucket for bucket in self._pool.buckets if any(used[member] for member in bucket.members)]
        parts = [current.sums.bucket(bucket) for bucket in needed]
        slot, wide = current.sums.finish()
        outs = [wide[bucket.flat][bucket.start : bucket.end] for bucket in needed]
        pending = [
            self._transport.begin_all_reduce(partials, self.placement, out)
            for partials, out in zip(parts, outs, strict=True)
        ]
        for reduction in pending:
            reduction.advance()
        scale = 1.0 if len(weights) == 1 or not needed else 1.0 / tree_sum(weights)
        for reduction, out, bucket in zip(pending, outs, needed, strict=True):
            reduction.finish()
            if scale != 1.0:
                out.mul_(scale)
            target = slot.flats[bucket.flat]
            if wide[bucket.flat] is not target:
                target[bucket.start : bucket.end].copy_(out)
        return slot

    def _hand_over(self, current: _Pass, slot: Slot, used: Sequence[bool]) -> None:
        """`p.grad` is what it was before the pass plus the pass's gradient; None where there is neither."""
        keep = False
        for parameter, view, before, is_used in zip(self.trainable, slot.views, current.held, used, strict=True):
            if not is_used:
                parameter.grad = before
            elif before is None:
                parameter.grad = view
                keep = True
            else:
                before.add_(view)
                parameter.grad = before
        if keep:
            self._result = slot
        else:
            self._pool.give_back(slot)

    def abandon(self) -> None:
        current, self._pass = self._pass, None
        if current is not None:
            for parameter, before in zip(self.trainable, current.held, strict=True):
                parameter.grad = before
            current.sums.release()

    def clip_grad_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float) -> float:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = gradient_norm(gradients, norm_type)
        scale = max_norm / (norm + 1e-6)
        if scale < 1.0:
            for gradient in gradients:
                gradient.mul_(scale)
        return norm

    def keep_buffers(self) -> None:
        if self._bank is not None:
            self._bank.remember()

    def restore_buffers(self) -> list[str]:
        if self._bank is None:
            return []
        return [self._bank.entries[index].name for index in self._bank.after_lane()]

    def check_owned(self, optimizer: Optimizer) -> None:
        owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        strangers = [parameter for parameter in owned if id(parameter) not in self._present]
        if strangers:
            live = {id(parameter) for _, model in self._models for parameter in model.parameters()}
            strangers = [parameter for parameter in strangers if id(parameter) not in live]
        for stranger in strangers:
            name, _ = self._ever.get(id(stranger), ("", stranger))
            raise UsageError(
                f"The parameter {name!r} was replaced by another object after run.prepare, so the optimizer updates one "
                f"that the model no longer has. Use load_state_dict without assign=True, or replace it before the "
                f"optimizer is made."
                if name
                else f"{type(optimizer).__name__} updates a tensor of shape {tuple(stranger.shape)} that belongs to no "
                f"prepared model, so its gradient was not reduced. Pass its module to run.prepare as well."
            )

    def close(self) -> None:
        self._release_hooks()

    def _release_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _present_bank(self) -> BufferBank:
        assert self._bank is not None
        return self._bank

    def _present_pass(self) -> _Pass:
        assert self._pass is not None
        return self._pass


def _check_loss(loss: Tensor, weight: float | None) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(f"run.backward needs a scalar loss, but got {shape}. Take the mean over the lane's samples.")
    if not loss.requires_grad:
        raise UsageError(
            "The loss needs no gradient: it was detached, computed under torch.no_grad(), or no parameter is trainable."
        )
    if weight is not None and not weight >= 0:
        raise UsageError(f"weight= must be 0 or more, but is {weight}. Pass the number of items in the loss.")
