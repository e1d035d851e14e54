"""One pass of a replica over this rank's lanes, and the lane that is open in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, repeat
from operator import attrgetter, is_
from typing import Any

from torch import Tensor

from samebits.errors import PeerLost, UsageError
from samebits.protocol.journal.spans import NO_RANGE, NoRange, spans
from samebits.protocol.layout.cut import StepCut
from samebits.protocol.layout.lane_tree import Node
from samebits.protocol.layout.placement import Placement
from samebits.rank.strategy.contract import LaneObserver, OpenLane, Pass, PassResult
from samebits.rank.strategy.pass_loss import DelayedResults, PassLoss, check_loss, numbers, stacked
from samebits.rank.strategy.precision import Precision
from samebits.rank.strategy.replica.buffer_pass import BufferPass
from samebits.rank.strategy.replica.lane_gradients import WIDE, GradientBuffer, PartialSums
from samebits.rank.strategy.replica.lanes import BufferedLane, Lane, OnlyLane, set_gradients
from samebits.rank.strategy.replica.model_layout import ModelLayout
from samebits.rank.strategy.replica.other_buffers import OtherBuffers
from samebits.rank.strategy.replica.pass_report import (
    Conclusions,
    DelayedLosses,
    PassReport,
    conclude,
    conclude_alone,
    flags_of,
    mask_of,
)
from samebits.rank.strategy.replica.reduction import Reduction
from samebits.rank.strategy.replica.sparse_embedding import Rows, added_over_ranks, sum_of
from samebits.rank.transport.contract import Transport

CHECKED_LANES = 4
"""The number of lanes in which the parameters' bits are summed before and after, to find writes through `.data`."""

_grad = attrgetter("grad")


@dataclass
class PassSetting:
    """What the passes of a replica share."""

    transport: Transport
    """All ranks."""
    peers: Transport
    """The ranks that hold the same parameters as this one, in the order of the replicas."""
    placement: Placement
    """Lanes on replicas."""
    part_of: Sequence[int]
    """For each rank, which part of the model it holds."""
    layout: ModelLayout
    precision: Precision = field(default_factory=Precision)
    observers: list[LaneObserver] = field(default_factory=list)
    lanes_checked: int = 0
    others: OtherBuffers | None = None
    """Buffers of modules that were not prepared, as they were before the first lane; on rank 0."""
    last_pass: tuple[int, int] = (0, 0)
    """The step and number of the last pass."""
    expected_backwards: dict[int, int] = field(default_factory=dict)
    """Backward calls per lane in the last step, by pass number: they decide when a bucket may begin early."""
    abandoned: list[Pass] = field(default_factory=list)
    """Passes that were left early; see [Note: why a pass that was left is retained]."""

    @cached_property
    def lanes(self) -> range:
        return self.placement.lanes(self.peers.rank)

    @cached_property
    def subtrees(self) -> Sequence[Node]:
        """What this rank hands over."""
        return self.placement.subtrees(self.peers.rank)

    @cached_property
    def has_one_lane(self) -> bool:
        return self.placement.num_lanes == 1

    def look_at_others(self) -> None:
        """Before a lane: see what modules that were not prepared hold, once."""
        if self.transport.rank == 0 and self.layout.memory.is_ours and not self.has_one_lane:
            self.others = OtherBuffers(self.layout.bank.known_modules())

    @property
    def delays_losses(self) -> bool:
        """Whether losses stay on GPUs until they are read: all ranks are peers, so GPUs can exchange them."""
        return self.layout.device.type != "cpu" and self.peers.world_size == self.transport.world_size

    @cached_property
    def peer_ranks(self) -> list[int]:
        """The ranks that hold the same parameters as this one."""
        mine = self.part_of[self.transport.rank]
        return [rank for rank, part in enumerate(self.part_of) if part == mine]


def _nothing() -> None:
    """Do nothing: no embedding reports."""


def _gradients_of(number: int, setting: PassSetting) -> Lane:
    layout = setting.layout
    if setting.has_one_lane:
        return OnlyLane(number, layout.trainable, layout.kept_sparse())
    return BufferedLane(number, layout.pool, layout.arrivals, layout.kept_sparse())


class LanePass(Pass):
    """See `Pass`. Constructing one begins it.

    Args:
        may_lack: whether the running backward may reach parameters with nothing, because a later stage had nothing; None: never.
        begins_early: whether a bucket may begin during backward.
    """

    def __init__(
        self,
        setting: PassSetting,
        cut: StepCut,
        where: str,
        *,
        may_lack: Callable[[], bool] | None = None,
        begins_early: bool,
    ) -> None:
        self.setting, self.cut, self.where = setting, cut, where
        self.may_lack, self._begins_early = may_lack, begins_early
        layout, placement, peers = setting.layout, setting.placement, setting.peers
        self.held: list[Tensor | None] = list(map(_grad, layout.trainable))
        """What `p.grad` was when the pass began."""
        layout.let_go_of_result()
        self.follows = setting.last_pass
        """The step and number of the previous pass."""
        step, number = setting.last_pass
        self._number = number + 1 if step == cut.step else 0
        setting.last_pass = cut.step, self._number
        self._sums = PartialSums(layout.pool, setting.subtrees, not setting.has_one_lane)
        delays_losses = setting.delays_losses
        self._delayed = DelayedLosses(layout.device, placement.num_lanes) if delays_losses else None
        """The lanes' losses, where the device keeps them."""
        self._buffers = BufferPass(layout.bank, cut, delays_losses=delays_losses)
        self.reduction = Reduction(peers, placement, layout.pool.buckets, layout.name_of)
        self._lanes_left = dict.fromkeys(setting.lanes)
        """The rank's lanes that have no gradient yet, in order."""
        self._marks = layout.arena.marks_as_laid()
        self._open: ReplicaLane | None = None
        self._only: OnlyLane | None = None
        """The finished lane, if the run has one lane."""
        self._used, self._is_over = 0, False
        self._report = PassReport()
        self._rows: dict[int, Rows] = {}
        """The sums of tables that were exchanged by rows."""
        self._losses: list[Tensor] = []

    def begin_lane(self, lane: int) -> ReplicaLane:
        if self.setting.others is None:
            self.setting.look_at_others()
        opened = self.open_lane(lane)
        opened.range, opened.stop_listening = (
            spans.range("lanes and buckets", f"lane {lane}"),
            self.setting.layout.listen(),
        )
        self.setting.precision.enter()
        return opened

    def open_lane(self, lane: int, *, knows_lack: bool = False) -> ReplicaLane:
        """Begin a lane whose forward has been computed already, or elsewhere.

        Args:
            knows_lack: whether `may_lack` is the same before a backward as in it.
        """
        setting, layout = self.setting, self.setting.layout
        # [Note: why only the first lanes compare bits]
        # Torch counts every write to a parameter but those through `.data`. Only bits find these, and a script that makes
        # them makes them from the start, so the first lanes are enough and later ones pay nothing.
        checksums = layout.arena.checksums() if setting.lanes_checked < CHECKED_LANES else []
        gradients = _gradients_of(lane, setting)
        self._open = ReplicaLane(self, gradients, checksums, knows_lack=knows_lack or self.may_lack is None)
        return self._open

    def expects_backwards(self, number: int, lane: BufferedLane) -> bool:
        """Whether buckets may begin in the lane's `number`th backward.

        They may if it is expected to be the last one of this rank's only lane, with nothing left to multiply.
        """
        peers = self.setting.peers
        only = len(self.setting.lanes) == 1 and peers.world_size > 1 and peers.begins_early and self._begins_early
        # [Note: why a synchronised norm keeps buckets back]
        # Its layers exchange over torch's default group during the backward. NCCL promises nothing for two communicators
        # that are under way at once: their kernels may wait for each other on the device.
        if self.setting.layout.exchanges_by_itself:
            return False
        return only and number == self.setting.expected_backwards.get(self._number) and lane.weight == 1.0

    def take_buffers(self, lane: int) -> None:
        """Note what the lane made of the buffers, and restore what the pass began with."""
        if (others := self.setting.others) is not None and others.is_held:
            others.say_written()
        self._buffers.after_lane(lane)

    def check_parameters(self, checksums: Sequence[int]) -> None:
        """Raise `UsageError` if the open lane changed parameters: later lanes elsewhere would start from others."""
        setting, arena = self.setting, self.setting.layout.arena
        name = arena.name_of_moved(self._marks)
        if not name and setting.lanes_checked < CHECKED_LANES:
            setting.lanes_checked += 1
            name = "one of them" if checksums != arena.checksums() else ""
        if name:
            raise UsageError(
                f"A parameter ({name}) was changed inside a step's lanes (written to, replaced, frozen or unfrozen), "
                "so later lanes would start from different values than on other ranks.",
                "Do it between steps (with Accelerate: where accelerator.sync_gradients is true), or between the passes of a step (GAN: "
                "one pass for each optimizer). Update a momentum encoder after optimizer.step(); nn.Embedding(max_norm=) writes in forward.",
            )

    def take_lane(self, lane: Lane, backwards: int) -> None:
        """Take the open lane, which is over; its gradients are complete."""
        setting, layout = self.setting, self.setting.layout
        self._open = None
        setting.expected_backwards[self._number] = backwards
        weight = lane.weight or 0.0
        if lane.losses:
            self._report.lanes[lane.number] = (weight, lane.explicit)
            loss = lane.losses[0] if len(lane.losses) == 1 else stacked(lane.losses).sum()
            if self._delayed is not None:
                self._delayed.add(lane.number, loss)
            else:
                self._losses.append(loss)
        if not setting.has_one_lane:
            self._used |= mask_of(lane.arrived())
        rows = lane.fill() if isinstance(lane, BufferedLane) else {}
        if setting.observers:
            buffer = lane.buffer_for_reading(layout.pool)
            for observer in setting.observers:
                observer(lane.number, buffer.flats, weight, lane.explicit)
            if isinstance(lane, OnlyLane):
                layout.pool.give_back(buffer)
        if isinstance(lane, OnlyLane):
            self._only = lane
        elif isinstance(lane, BufferedLane):
            self._sums.add(lane.number, lane.buffer, weight, rows)
        del self._lanes_left[lane.number]

    def end(self, rows: Mapping[str, Any], seen: int) -> PassResult:
        # The tree has a leaf for every lane, empty or not: its shape must not depend on the data.
        if not self.setting.has_one_lane:
            for lane in self._lanes_left:
                self._sums.add(lane, None, 0.0)
        report = self._report
        if self._delayed is None:
            report.losses = dict(zip(report.lanes, numbers(self._losses), strict=True))
        report.used, report.rows, report.seen = self._used, rows, seen
        report.buffers = self._buffers.header()
        report.num_rows = {} if self.setting.has_one_lane else self._sums.num_rows()
        report.begun, report.reopened = self.reduction.num_begun, sorted(self.reduction.reopened)
        try:
            all_ranks = self._conclude()
            buffer, used = (None, []) if self.setting.has_one_lane else self._reduce(all_ranks)
        except PeerLost:
            # Only `Transport.exchange` reports a loss by itself; here a sum of tensors may have failed.
            self.setting.transport.lost()
            raise
        self._is_over = True
        if buffer is not None:
            self._sums.finish(buffer)
            self._hand_over(buffer, used)
        elif self._only is not None:
            self._only.hand_over(self.held, self.setting.precision.unscale)
        loss = PassLoss(all_ranks.weights, self._losses_of(all_ranks), list(all_ranks.losses))
        return PassResult(loss, all_ranks.rows, all_ranks.apart)

    def _losses_of(self, all_ranks: Conclusions) -> Mapping[int, float] | DelayedResults:
        setting, buffers = self.setting, self._buffers
        if self._delayed is None or (setting.has_one_lane and not all_ranks.losses):
            return all_ranks.losses
        apart = buffers.apart() if setting.peers.world_size > 1 else None
        values = self._delayed.finish([apart] if apart is not None else [])
        refuse, check = setting.layout.bank.refuse_unseen, setting.peers.look
        return DelayedResults(values, refuse, check, lambda: buffers.sums_of_ranks(setting.placement))

    def _conclude(self) -> Conclusions:
        setting = self.setting
        if setting.transport.world_size == setting.placement.num_lanes == 1:
            return conclude_alone(self._report)
        operation = f"step {self.cut.step} pass {self._number + 1}"
        reports = setting.transport.all_gather_object(self._report.encode(), operation, self.where)
        return conclude(reports, setting.placement.num_lanes, setting.peer_ranks)

    def _reduce(self, agreed: Conclusions) -> tuple[GradientBuffer, list[bool]]:
        """Add up over the ranks; return the sum, and for each trainable parameter whether some lane has a gradient."""
        setting, layout = self.setting, self.setting.layout
        used, by_rows = flags_of(agreed.used, len(layout.trainable)), frozenset(agreed.num_rows)
        whole = [*used]
        for number in by_rows:
            whole[number] = False
        needed = {*compress(layout.bucket_of, whole)} - {-1}
        parts = self._sums.rows(by_rows)
        # Everything is begun before anything is waited for, so that exchanges overlap.
        self.reduction.begin(self._sums, needed, agreed.begun, agreed.reopened, by_rows)
        self._buffers.begin(agreed.buffers, setting.peers, setting.placement)
        if self._delayed is not None:
            self._delayed.begin(self._buffers.unnoticed, setting.peers, setting.placement)
        ranks, scale = (setting.peers, setting.placement), agreed.scale * setting.precision.unscale
        buffer = self.reduction.finish(scale)
        if by_rows:
            self._rows = added_over_ranks(parts, agreed.num_rows, layout.trainable, ranks, (WIDE, scale))
        self._buffers.finish()
        return buffer, used

    def _hand_over(self, buffer: GradientBuffer, used: Sequence[bool]) -> None:
        """Set `p.grad` to what it was before the pass plus the pass's gradient; None if there is neither."""
        layout = self.setting.layout
        sparse = layout.kept_sparse() & self._rows.keys()
        for number, rows in self._rows.items():
            if used[number] and number not in sparse:
                rows.fill(buffer.views[number])
        # Nearly every pass: nothing was held before it and every parameter is used, so a few calls serve them all.
        if all(used) and not sparse and all(map(is_, self.held, repeat(None))):
            set_gradients(layout.trainable, buffer.views)
            layout.result = buffer
            return
        keep = False
        for number, (parameter, view, before) in enumerate(zip(layout.trainable, buffer.views, self.held, strict=True)):
            if not used[number]:
                parameter.grad = before
                continue
            new = self._rows[number].sparse(parameter) if number in sparse else view
            parameter.grad = new if before is None else sum_of(before, new)
            keep = keep or parameter.grad is view
        if keep:
            layout.result = buffer
        else:
            layout.pool.give_back(buffer)

    def abandon(self) -> None:
        if self._is_over:
            return
        setting, layout, opened = self.setting, self.setting.layout, self._open
        self.let_go()
        setting.precision.leave()
        self.restore_gradients()
        if opened is not None:
            opened.range.end()
            opened.stop_listening()
        layout.bank.restore()
        # [Note: why a pass that was left is retained]
        # Other ranks may still read what this one has begun to send, so its memory must stay. To wait until they have could
        # take forever: they may have left the pass too.
        if self.reduction.num_begun:
            setting.abandoned.append(self)
            return
        self._sums.give_up()
        if opened is not None and isinstance(opened.gradients, BufferedLane):
            layout.pool.give_back(opened.gradients.buffer)

    def let_go(self) -> None:
        """Drop a pass that is over or continues as another one: restore nothing of it, and keep no lane alive."""
        self._is_over, self._open = True, None

    def restore_gradients(self) -> None:
        """Restore `p.grad` to what it was before the pass."""
        for parameter, before in zip(self.setting.layout.trainable, self.held, strict=True):
            parameter.grad = before


class ReplicaLane(OpenLane):
    """See `OpenLane`; made by `LanePass`.

    Args:
        gradients: what the lane's backward writes into.
        checksums: those of the parameters before the lane, if they are compared.
        knows_lack: whether the pass's `may_lack` stays the same while a backward runs.
    """

    def __init__(self, of: LanePass, gradients: Lane, checksums: Sequence[int], *, knows_lack: bool) -> None:
        self._pass, self.gradients, self._checksums, self._knows_lack = of, gradients, checksums, knows_lack
        self.backwards = 0
        """The number of backward calls."""
        self.range: NoRange = NO_RANGE
        """The range of its forward and backward in profiles."""
        self.stop_listening: Callable[[], None] = _nothing
        """Lets embeddings be as they are outside lanes."""

    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:
        setting, lane, reduction = self._pass.setting, self.gradients, self._pass.reduction
        check_loss(loss, weight)
        lane.weigh(weight, self._pass.cut.weights[lane.number])
        lane.check_untouched()
        lane.losses.append(loss.detach())
        self.backwards += 1
        if isinstance(lane, BufferedLane) and self._pass.expects_backwards(self.backwards, lane):
            reduction.arm(lane.buffer)
        try:
            self.run_backward(lambda: setting.precision.backward(loss, retain_graph=retain_graph))
        finally:
            reduction.disarm()

    def weigh_by_samples(self) -> None:
        """Let the lane count as its samples do, as a backward without `weight=` does."""
        self.gradients.weigh(None, self._pass.cut.weights[self.gradients.number])

    def run_backward(self, backward: Callable[[], None]) -> None:
        """Let `backward` write this lane's gradients."""
        layout, may_lack = self._pass.setting.layout, self._pass.may_lack
        lacks = not self._knows_lack or (may_lack is not None and may_lack())
        layout.listen_to(self.gradient_arrived, only_notes=not lacks and self._pass.reduction.is_quiet)
        try:
            self.gradients.begin_backward()
            backward()
        finally:
            layout.listen_to(None)
        self.gradients.backward_finished()

    def gradient_arrived(self, number: int, bucket: int) -> None:
        """A `Listener`, while its backward runs."""
        lane, may_lack = self.gradients, self._pass.may_lack
        assert isinstance(lane, BufferedLane)
        lacks = may_lack is not None and may_lack()
        if lane.gradient_arrived(number, may_lack=lacks) and bucket >= 0:
            self._pass.reduction.gradient_arrived(bucket, number)

    def check(self) -> None:
        """Raise `UsageError` if the script touched gradients or parameters in the lane."""
        self.gradients.check_untouched()
        self._pass.check_parameters(self._checksums)

    def leave_forward(self) -> None:
        """Compute nothing more in the run's precision. A second call does nothing."""
        self._pass.setting.precision.leave()

    def end(self) -> None:
        self.leave_forward()
        self.close(takes_buffers=True)

    def close(self, *, takes_buffers: bool) -> None:
        """End the lane; `takes_buffers` unless that was done after its forward."""
        self.stop_listening()
        self.check()
        if takes_buffers:
            self._pass.take_buffers(self.gradients.number)
        try:
            self._pass.take_lane(self.gradients, self.backwards)
        finally:
            self.range.end()
