"""`single` and `ddp`: every rank holds the whole model; gradients are reduced after a pass's lanes.

Synchronisation hangs on gradients and not on `forward`, so any method of the model may be called, twice or not at all.
What a rank must tell the others about a pass (weights, losses, which parameters were used, buffers) travels in one
frame; only buckets that some lane used are reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.errors import UsageError
from lockstep.layout.placement import Placement
from lockstep.strategy.agreement import check_same_models, find_difference, refuse_unsupported
from lockstep.strategy.contract import OnLane, PassResult, StepCut, Strategy
from lockstep.strategy.losses import check_loss, numbers, stacked
from lockstep.strategy.norm import gradient_norm
from lockstep.strategy.other_users import agree_who_stays
from lockstep.strategy.replica.arena import Allocate, Marks, ParameterArena
from lockstep.strategy.replica.buffer_pass import BufferPass
from lockstep.strategy.replica.buffers import BufferBank
from lockstep.strategy.replica.lane import Lane
from lockstep.strategy.replica.only_lane import OnlyLane
from lockstep.strategy.replica.pass_report import Conclusions, PassReport, conclude, conclude_alone, flags_of, mask_of
from lockstep.strategy.replica.private_memory import private_zeros
from lockstep.strategy.replica.reduction import Reduction
from lockstep.strategy.replica.slot_lane import SlotLane
from lockstep.strategy.replica.slots import PartialSums, Slot, SlotPools
from lockstep.strategy.right_form import RIGHT_FORM
from lockstep.transport.contract import Transport

CHECKED_LANES = 4
"""In so many lanes the parameters' bits are summed before and after, to find writes through `.data`."""

_grad = attrgetter("grad")


@dataclass
class _Pass:
    """The pass that is being made on this rank."""

    cut: StepCut
    where: str
    number: int
    """Which pass over the step's lanes, from 0."""
    sums: PartialSums
    buffers: BufferPass
    reduction: Reduction
    held: list[Tensor | None]
    """What `p.grad` was when the pass began."""
    next_lane: int
    marks: Marks
    """Of the parameters when the pass began."""
    only: OnlyLane | None = None
    """The finished lane, when the run has one lane."""
    used: int = 0
    report: PassReport = field(default_factory=PassReport)
    losses: list[Tensor] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    backwards: int = 0
    """Backward calls of the present lane, then of the last one."""


class Replica(Strategy):
    """Every rank holds the model.

    Args:
        name: `single` or `ddp`.
        transport: the ranks.
        placement: lanes on replicas.
        peers: those of them that hold the same parameters, in the order of the replicas; by default all.
        shared: makes memory that processes outside of `transport` write to at any time (`hogwild`): parameters lie in
            it for good, their values are not compared, and buffers are left alone. None: everything is this rank's.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        placement: Placement,
        peers: Transport | None = None,
        shared: Allocate | None = None,
    ) -> None:
        self.name = name
        self.placement = placement
        self._transport = transport
        self._peers = peers or transport
        self._shared = shared
        self._lanes = placement.lanes(self._peers.rank)
        self._part_of: Sequence[int] = (0,) * transport.world_size
        """Of each rank, which part of the model it holds."""
        self._absent: set[int] = set()
        """Identities of parameters and buffers that other ranks hold."""
        self._rules: dict[str, str] = {}
        self.on_lane: OnLane | None = None
        self._models: list[tuple[str, nn.Module]] = []
        self._hooks: list[Any] = []
        self._arena = ParameterArena(())
        self._stay: frozenset[int] = frozenset()
        """Identities of parameters and buffers that keep the memory that they had; see `other_users`."""
        self._bank: BufferBank | None = None
        self._pass: _Pass | None = None
        self._lane: Lane | None = None
        self._in_backward = False
        self._arrivals: list[int] = []
        """In a run with one lane: the parameters that the lane's backward calls came to."""
        self._pools = SlotPools(self._peers, placement.most_held() if self._peers.world_size > 1 else 0)
        self._lanes_checked = 0 if shared is None else CHECKED_LANES
        self._last_step = (0, 0)
        """The step and number of the last pass."""
        self._expected_backwards: dict[int, int] = {}
        """Backward calls per lane in the last step, by number of pass: when a bucket may begin early."""
        self._result: Slot | None = None
        self._abandoned: list[_Pass] = []
        """Passes that were left early: what they had begun to send must stay, and waiting for it could be for ever."""
        self._ever: dict[int, tuple[str, nn.Parameter]] = {}
        """Every parameter that a prepared model ever had, by identity; kept alive, so that no identity is used again."""

    def set_buffer_rules(self, rules: Mapping[str, str]) -> None:
        """Add rules for buffers that differ between lanes; see `lockstep.strategy.replica.buffers`. Before `adopt`."""
        for pattern, rule in rules.items():
            if rule not in ("first", "mean"):
                raise UsageError(f'buffers={{"{pattern}": {rule!r}}}: the rule must be "first" or "mean".')
        self._rules |= rules

    def adopt(self, models: Sequence[nn.Module]) -> None:
        self._models = [(f"{type(model).__name__}{number or ''}", model) for number, model in enumerate(models)]
        refuse_unsupported(self._models)
        check_same_models(self._models, self._peers)
        self._lay_out()

    def _follow_changes(self) -> None:
        """The script changed its model between passes; every rank must have changed it alike."""
        if not self._present_bank().has_changed() and self._arena.only_froze():
            flags = "".join("01"[parameter.requires_grad] for parameter in self._arena.parameters)
            if len(set(self._peers.all_gather_object(flags, "frozen parameters"))) > 1:
                raise UsageError("requires_grad differs between ranks. Freeze and unfreeze on every rank alike.")
            self._watch_trainable()
            return
        if self._shared is not None:
            raise UsageError(
                "A parameter of the model was moved, replaced, resized, or a layer came or went, after run.prepare. Under "
                "hogwild the parameters lie in memory that all ranks share. Change the model before run.prepare and load "
                "values with load_state_dict, or use --strategy ddp."
            )
        refuse_unsupported(self._models, self._absent)
        check_same_models(self._models, self._peers, self._absent)
        self._lay_out()

    def _lay_out(self, *, compact: bool = False) -> None:
        """Lay out parameters, gradients and buffers anew; at `adopt`, and when a script changed its model.

        Args:
            compact: give the memory of what this rank does not hold any more back, by moving what stays.
        """
        self._pools.close()
        if self._shared is None:
            self._stay = agree_who_stays(self._models, self._peers, self._absent, self._laid())
        self._arena = self._make_arena(None if compact else self._arena)
        self._present = {id(parameter) for parameter in self._arena.parameters}
        for name, parameter in zip(self._arena.names, self._arena.parameters, strict=True):
            self._ever[id(parameter)] = (name, parameter)
        models = self._models if self._shared is None else ()
        self._bank = BufferBank(models, self._rules, self._absent, stay=self._stay)
        self._watch_trainable()

    def _laid(self) -> set[int]:
        """Where parameters and buffers were put."""
        return {*self._arena.addresses, *(self._bank.addresses if self._bank is not None else ())}

    def _make_arena(self, previous: ParameterArena | None) -> ParameterArena:
        allocate = self._shared or private_zeros
        return ParameterArena(self._models, self._absent, allocate, stay=self._stay, previous=previous)

    def _watch_trainable(self) -> None:
        """Lay out gradients of the parameters that are trainable now, and watch them."""
        held = {id(parameter): parameter.grad for parameter in self._arena.parameters}
        self._release_hooks()
        self.trainable = [parameter for parameter in self._arena.parameters if parameter.requires_grad]
        self._let_go_of_result()
        self._pool = self._pools.of(self._arena.parameters)
        buckets = {member: number for number, bucket in enumerate(self._pool.buckets) for member in bucket.members}
        self._bucket_of = [buckets.get(number, -1) for number in range(len(self.trainable))]
        for number, parameter in enumerate(self.trainable):
            gradient = held.get(id(parameter))
            fits = gradient is not None and gradient.shape == parameter.shape and gradient.dtype == parameter.dtype
            parameter.grad = gradient if fits else None
            hook = parameter.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]
            self._hooks.append(hook)

    def _let_go_of_result(self) -> None:
        """The last pass's slot may be used again when the script holds no gradient of it any more."""
        if self._result is not None:
            self._pool.give_back(self._result)
            self._result = None

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        bucket, note = self._bucket_of[number], self._arrivals.append

        def gradient_arrived(_: Tensor) -> None:
            if not self._in_backward:
                raise _misplaced_backward()
            assert isinstance(self._lane, SlotLane)
            assert self._pass is not None
            if self._lane.gradient_arrived(number, may_lack=self._may_lack()) and bucket >= 0:
                self._pass.reduction.gradient_arrived(bucket, number)

        def only_gradient_arrived(_: Tensor) -> None:  # called for every parameter: little, and nothing that calls more
            if not self._in_backward:
                raise _misplaced_backward()
            note(number)

        return gradient_arrived if self.placement.num_lanes > 1 else only_gradient_arrived

    def _may_lack(self) -> bool:
        """Whether the present backward may come to parameters with nothing."""
        return False

    def begin_pass(self, cut: StepCut, where: str) -> None:
        if self._abandoned:
            raise UsageError(
                f"A step's lanes were left early after run.backward, when gradients were on their way already, so this "
                f"rank cannot go on. Leave before run.backward, or go through all lanes:\n{RIGHT_FORM}"
            )
        if self._arena.has_changed() or self._present_bank().has_changed():
            self._follow_changes()
        held = list(map(_grad, self.trainable))
        self._let_go_of_result()
        step, number = self._last_step
        number = number + 1 if step == cut.step else 0
        self._last_step = (cut.step, number)
        self._pass = _Pass(
            cut=cut,
            where=where,
            number=number,
            sums=PartialSums(self._pool, self.placement.subtrees(self._peers.rank), self.placement.num_lanes > 1),
            buffers=BufferPass(self._present_bank(), cut),
            reduction=Reduction(self._peers, self.placement, self._pool.buckets),
            held=held,
            next_lane=self._lanes.start,
            marks=self._arena.marks(),
        )

    def begin_lane(self, lane: int) -> None:
        current = self._present_pass()
        if self._lanes_checked < CHECKED_LANES:
            current.checksums = self._arena.checksums()
        self._skip_lanes_before(lane)
        current.backwards = 0
        only = self.placement.num_lanes == 1
        self._lane = OnlyLane(lane, self.trainable, self._arrivals) if only else SlotLane(lane, self._pool)

    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:
        current, lane = self._present_pass(), self._present_lane()
        check_loss(loss, weight)
        lane.weigh(weight, current.cut.weights[lane.number])
        lane.check_untouched()
        lane.losses.append(loss.detach())
        current.backwards += 1
        if isinstance(lane, SlotLane) and self._may_begin_early(current, lane):
            current.reduction.arm(lane.slot)
        try:
            self._run_backward(lambda: self.precision.backward(loss, retain_graph=retain_graph))
        finally:
            current.reduction.disarm()

    def _run_backward(self, backward: Callable[[], None]) -> None:
        """Let `backward` write gradients of the present lane."""
        self._in_backward = True
        try:
            backward()
        finally:
            self._in_backward = False
        self._present_lane().backward_finished(may_lack=self._may_lack())

    def _may_begin_early(self, current: _Pass, lane: SlotLane) -> bool:
        """Whether this is expected to be the last backward of the rank's only lane, and nothing is left to multiply."""
        only = len(self._lanes) == 1 and self._peers.world_size > 1 and self._peers.begins_early
        last = current.backwards == self._expected_backwards.get(current.number)
        return only and last and lane.weight == 1.0

    def end_lane(self) -> None:
        current, lane = self._present_pass(), self._present_lane()
        lane.check_untouched()
        self._check_parameters(current)
        self._lane = None
        self._take_buffers(lane.number)
        self._expected_backwards[current.number] = current.backwards
        weight = lane.weight or 0.0
        if lane.losses:
            current.report.lanes[lane.number] = (weight, lane.explicit)
            current.losses.append(lane.losses[0] if len(lane.losses) == 1 else stacked(lane.losses).sum())
        if self.placement.num_lanes > 1:
            current.used |= mask_of(lane.arrived())
        if isinstance(lane, SlotLane):
            lane.fill()
        if self.on_lane is not None:
            self._show(lane, self.on_lane)
        if isinstance(lane, OnlyLane):
            current.only = lane
        elif isinstance(lane, SlotLane):
            current.sums.add(lane.number, lane.slot, weight)
        current.next_lane = lane.number + 1

    def _show(self, lane: Lane, observer: OnLane) -> None:
        slot = lane.slot_for_reading(self._pool)
        observer(lane.number, slot.flats, lane.weight or 0.0, lane.explicit)
        if isinstance(lane, OnlyLane):
            self._pool.give_back(slot)

    def _take_buffers(self, lane: int) -> None:
        """What the lane made of the buffers is noted, and they are what the pass began with again."""
        self._present_pass().buffers.after_lane(lane)

    def _peer_ranks(self) -> list[int]:
        """The ranks that hold the same parameters as this one."""
        mine = self._part_of[self._transport.rank]
        return [rank for rank, part in enumerate(self._part_of) if part == mine]

    def _check_parameters(self, current: _Pass) -> None:
        """Raise `UsageError` when the lane changed parameters: later lanes would start from other values elsewhere."""
        name = self._arena.name_of_moved(current.marks)
        if not name and self._lanes_checked < CHECKED_LANES:
            self._lanes_checked += 1
            name = "one of them" if current.checksums != self._arena.checksums() else ""
        if name:
            raise UsageError(
                f"A parameter ({name}) was changed inside a step's lanes (written to, replaced, frozen or unfrozen), so "
                f"later lanes would start from other values than on other ranks. Do it between steps, or between the "
                f"passes of a step (GAN: one pass for each optimizer). A momentum encoder is updated after "
                f"optimizer.step(); nn.Embedding(max_norm=) writes in forward."
            )

    def _skip_lanes_before(self, end: int) -> None:
        """Lanes that are empty in this step count as zeros, on whichever rank."""
        current = self._present_pass()
        for lane in range(current.next_lane, end):
            if self.placement.num_lanes > 1:
                current.sums.add(lane, None, 0.0)
        current.next_lane = max(current.next_lane, end)

    def end_pass(self, notes: Mapping[int, Any]) -> PassResult:
        current = self._present_pass()
        self._skip_lanes_before(self._lanes.stop)
        report, reduction = current.report, current.reduction
        report.losses = dict(zip(report.lanes, numbers(current.losses), strict=True))
        report.used, report.notes, report.seen = current.used, notes, self.seen
        report.buffers = current.buffers.header()
        report.begun, report.reopened = reduction.num_begun, sorted(reduction.reopened)
        all_ranks = self._conclude(current)
        if self.placement.num_lanes > 1:
            self._reduce(current, all_ranks)
        elif current.only is not None:
            current.only.hand_over(current.held, self.precision.unscale)
        self._pass = None
        return PassResult(all_ranks.loss, all_ranks.notes, all_ranks.apart)

    def _conclude(self, current: _Pass) -> Conclusions:
        if self._transport.world_size == self.placement.num_lanes == 1:
            return conclude_alone(current.report)
        operation = f"step {current.cut.step} pass {current.number + 1}"
        told = self._transport.all_gather_object(current.report.encode(), operation, current.where)
        return conclude(told, self.placement.num_lanes, self._peer_ranks())

    def _reduce(self, current: _Pass, all_ranks: Conclusions) -> None:
        used = flags_of(all_ranks.used, len(self.trainable))
        needed = {bucket for bucket, is_used in zip(self._bucket_of, used, strict=True) if is_used and bucket >= 0}
        current.reduction.begin(current.sums, needed, all_ranks.begun, all_ranks.reopened)
        current.buffers.begin(all_ranks.buffers, self._peers, self.placement)
        slot = current.reduction.finish(all_ranks.scale * self.precision.unscale)
        current.buffers.finish()
        self._hand_over(current, slot, used)

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
            if self._lane is not None:
                self._present_bank().restore()
            if current.reduction.num_begun:
                self._abandoned.append(current)
            else:
                current.sums.give_up()
                if isinstance(self._lane, SlotLane):
                    self._pool.give_back(self._lane.slot)
            self._lane = None

    def clip_grad_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float) -> float:
        if not norm_type > 0:
            raise UsageError(f"`norm_type` must be above 0 (or infinity), but is {norm_type}.")
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = self.gradient_norm(parameters, norm_type)
        scale = max_norm / (norm + 1e-6)
        if not scale >= 1.0:  # NaN too, as torch does
            for gradient in gradients:
                gradient.mul_(scale)
        return norm

    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        return gradient_norm([p.grad for p in parameters if p.grad is not None], norm_type)

    def checksums(self) -> list[int]:
        return [*self._arena.checksums(), *self._bank.checksums()] if self._bank is not None else []

    def name_difference(self) -> str:
        found = find_difference(self._models, self._peers, self._absent)
        return found.name if found is not None else ""

    def keep_buffers(self) -> None:
        if self._bank is not None:
            self._bank.remember()

    def restore_buffers(self) -> list[str]:
        if self._bank is None:
            return []
        return [self._bank.entries[index].name for index in self._bank.after_lane().entries]

    def before_update(self, optimizer: Optimizer) -> None:
        owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        strangers: list[Tensor] = []
        if not self._present.issuperset(map(id, owned)):
            strangers = [parameter for parameter in owned if id(parameter) not in self._present]
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

    def _present_lane(self) -> Lane:
        assert self._lane is not None
        return self._lane

    def _present_pass(self) -> _Pass:
        assert self._pass is not None
        return self._pass


def _misplaced_backward() -> UsageError:
    return UsageError(
        "loss.backward() was called on a prepared model, so the gradient would miss the other lanes. "
        f"Call run.backward(loss) inside the step's lanes:\n{RIGHT_FORM}"
    )
