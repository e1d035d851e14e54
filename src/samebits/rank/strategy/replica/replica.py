"""`single` and `ddp`: every rank holds the whole model; gradients are reduced after a pass's lanes.

Synchronisation depends on gradients and not on `forward`, so any method of the model may be called any number of times.
What a rank must report to the others about a pass (weights, losses, which parameters were used, buffers) travels in one
frame; only buckets that some lane used are reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.protocol.layout.cut import StepCut
from samebits.protocol.layout.placement import Placement
from samebits.rank.strategy.agreement import named_tensors
from samebits.rank.strategy.contract import RIGHT_FORM, Strategy
from samebits.rank.strategy.norm import clip, gradient_norm, require_norm_type
from samebits.rank.strategy.precision import Precision
from samebits.rank.strategy.replica.buffers import NAMED
from samebits.rank.strategy.replica.lane_pass import CHECKED_LANES, LanePass, PassSetting
from samebits.rank.strategy.replica.memory import ParameterMemory
from samebits.rank.strategy.replica.model_layout import ModelLayout
from samebits.rank.strategy.replica.sparse_embedding import require_sparse
from samebits.rank.transport.contract import Transport


class Replica(Strategy):
    """A strategy where every rank holds the model. Other strategies hold one of these and look at `layout`.

    Args:
        name: `single` or `ddp`, or the strategy that holds it.
        precision: by default that of the parameters.
        peers: the ranks that hold the same parameters, in the order of the replicas; by default all.
        part_of: for each rank, which part of the model it holds; by default all hold the same.
        memory: where the parameters are; by default in this rank's own memory.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        placement: Placement,
        precision: Precision | None = None,
        *,
        peers: Transport | None = None,
        part_of: Sequence[int] | None = None,
        memory: ParameterMemory | None = None,
    ) -> None:
        self.name, self.placement = name, placement
        peers, memory = peers or transport, memory or ParameterMemory()
        most_held = placement.most_held() if peers.world_size > 1 else 0
        only = placement.num_lanes == 1
        self.layout = ModelLayout(peers, memory, most_held, in_one_lane=only, looks=part_of is None)
        self._setting = PassSetting(transport, peers, placement, part_of or (0,) * transport.world_size, self.layout)
        if precision is not None:
            self._setting.precision = precision
        self.observers, self.precision = self._setting.observers, self._setting.precision
        self._setting.lanes_checked = 0 if memory.is_ours else CHECKED_LANES

    def take_optimizer(self, optimizer: Optimizer, updates_by: str | None, require_same: Callable[[str], None]) -> None:  # noqa: ARG002
        self.layout.optimizers.append(optimizer)
        require_sparse(optimizer, self.layout.trainable, self.layout.tables)

    def set_buffer_rules(self, rules: Mapping[str, str]) -> None:
        """Add rules for buffers that differ between lanes; see `samebits.rank.strategy.replica.buffers`. Before `adopt`."""
        for pattern, rule in rules.items():
            if rule not in NAMED:
                raise UsageError(
                    f'buffers={{"{pattern}": {rule!r}}} names an unknown rule.',
                    'Use "sum", "first", "mean", "min" or "max".',
                )
        self.layout.rules |= rules

    def carry_buffers(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        self.layout.carry(modules)

    def bring(self, model: nn.Module, device: torch.device) -> None:
        self.layout.bring(model, device)

    def adopt(self, models: Sequence[nn.Module]) -> None:
        self.layout.adopt(models)

    def begin_pass(
        self, cut: StepCut, where: str, *, may_lack: Callable[[], bool] | None = None, begins_early: bool = True
    ) -> LanePass:
        # Other ranks may still wait in that pass for what this one left out.
        if self._setting.abandoned:
            raise UsageError(
                "The lane loop was exited early, after run.backward had already started sending gradients, so this "
                "rank cannot continue.",
                f"Leave before run.backward, or go through all lanes:\n{RIGHT_FORM}",
            )
        self.layout.follow_changes()
        return LanePass(self._setting, cut, where, may_lack=may_lack, begins_early=begins_early)

    def begin_again(self, before: LanePass, may_lack: Callable[[], bool]) -> LanePass:
        """Begin once more, on another layout, a pass of which this rank has sent nothing."""
        self._setting.last_pass = before.follows
        return self.begin_pass(before.cut, before.where, may_lack=may_lack)

    def clip_grad_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float) -> float:
        require_norm_type(norm_type)
        norm = self.gradient_norm(parameters, norm_type)
        clip([parameter.grad for parameter in parameters if parameter.grad is not None], norm, max_norm)
        return norm

    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        return gradient_norm([p.grad for p in parameters if p.grad is not None], norm_type)

    def checksums(self, *, only_moving: bool = False) -> list[int]:
        if not only_moving:
            return self.layout.checksums()
        # Where GPUs compare statistics themselves, `PassLoss.apart` reports it.
        compares = self._setting.delays_losses and not self._setting.has_one_lane and self.layout.bank.on_device
        return [] if compares else self.layout.bank.checksums(only_moving=True)

    def tensors(self, *, only_moving: bool = False) -> list[tuple[str, Tensor]]:
        if only_moving:
            label = f"{self.layout.models[0][0]}." if len(self.layout.models) == 1 else ""
            return [(f"{label}{name}", tensor) for name, tensor in self.layout.bank.moving()]
        found = named_tensors(self.layout.models)
        return [(name, tensor) for name, tensor in found if id(tensor) not in self.layout.absent]

    @property
    def gradient_bytes(self) -> int:
        return self.layout.gradient_bytes

    def keep_buffers(self) -> None:
        self.layout.bank.remember()

    def restore_buffers(self) -> list[str]:
        bank = self.layout.bank
        return [bank.entries[index].name for index in bank.after_lane().entries]

    def before_update(self, optimizer: Optimizer) -> None:
        self.layout.refuse_unknown_parameters(optimizer)

    def close(self) -> None:
        self.layout.stop_watching()
