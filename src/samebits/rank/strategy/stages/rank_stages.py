"""Consecutive layers on different ranks; each rank holds only its stage's parameters.

Other stages' parameters become tensors on the meta device, the same objects: an optimizer skips them, as their gradient
is None when it steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Container, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.machine.torch_private import DisableTorchFunctionSubclass
from samebits.protocol.layout.mesh import Mesh
from samebits.rank.strategy.norm import chunk_norms, combine_norms
from samebits.rank.strategy.optimizer_kinds import StepWatch, follow_parameters, updates_by
from samebits.rank.strategy.other_users import refuse_named
from samebits.rank.strategy.replica.model_layout import ModelLayout
from samebits.rank.strategy.stages.carried_streams import CarriedStreams
from samebits.rank.strategy.stages.clock import StageClock
from samebits.rank.strategy.stages.contract import Stages
from samebits.rank.strategy.stages.cutting.model_cut import ModelCut
from samebits.rank.strategy.stages.hand_over import Links
from samebits.rank.strategy.stages.meta_placeholder import let_go
from samebits.rank.strategy.stages.runner import StageRunner
from samebits.rank.transport.contract import Transport


class RankStages(Stages):
    """A replica's model in stages, one on each of its ranks."""

    def __init__(self, mesh: Mesh, transport: Transport, device: torch.device) -> None:
        self.peers = transport.split([mesh.peers(stage) for stage in range(mesh.stages)])
        """The ranks that hold the same stage."""
        replicas = [mesh.members(replica) for replica in range(mesh.replicas)]
        # NCCL keeps one order between two ranks and knows no tags, so each kind of message has a transport there.
        inside = [transport.split(replicas) for _ in range(3 if device.type == "cuda" else 1)]
        self._groups = [self.peers, *inside]
        self.links = Links((inside * 3)[:3], device)
        self.mesh, self.num_stages = mesh, mesh.stages
        self._transport, self._device = transport, device
        self.clock = StageClock()
        self.runner: StageRunner | None = None
        """Set once the model is cut."""
        self._cut: ModelCut | None = None
        self._absent: Container[int] = ()
        self._elsewhere: list[tuple[nn.Parameter, Tensor]] = []
        """The parameters of other stages, each with what stands for its gradient."""
        self._guards: list[Any] = []
        self._guarded: list[Optimizer] = []
        self._optimizers: list[Optimizer] = []
        self._holders: dict[int, int] = {}
        """The stage of each parameter and written buffer, by identity."""

    def install(self, model: nn.Module, cut: ModelCut, used: Collection[str], layout: ModelLayout) -> None:
        """Retain this rank's stage; free the rest."""
        stage, last = self.links.stage, self.num_stages - 1
        # torch swaps no tensor that has weak references, and recurrent layers keep some to their weights.
        recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
        for module in recurrent:
            module._flat_weight_refs = []  # noqa: SLF001
        absent: list[tuple[str, Tensor]] = []
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            holder = cut.holders.get(name, last if isinstance(tensor, nn.Parameter) else None)
            if holder is not None:
                self._holders[id(tensor)] = holder
            if holder not in (None, stage):
                layout.absent.add(id(tensor))
                absent.append((name, tensor))
        fix = "Drop the view, because its layer is now on another rank, or use --strategy ddp."
        named = [*model.named_parameters(), *model.named_buffers()]
        moving = [name for name, one in named if id(one) in layout.absent or one.device != self._device]
        refuse_named(moving, used, fix)
        for name, tensor in absent:
            if isinstance(tensor, nn.Parameter):
                let_go(name, tensor, self._device)
        for module in recurrent:
            module._flat_weight_refs = [None if w is None else weakref.ref(w) for w in module._flat_weights]  # noqa: SLF001
        layout.lay_out(compact=True, place=lambda _: self._device)
        for optimizer in self._optimizers:
            follow_parameters(optimizer)
        self._cut, self._absent = cut, layout.absent
        gone = [tensor for _, tensor in absent if isinstance(tensor, nn.Parameter)]
        self._elsewhere = [(parameter, torch.empty_like(parameter)) for parameter in gone]
        self._guards.append(model.register_state_dict_pre_hook(_refuse_partial_model))  # type: ignore[no-untyped-call]
        streams = CarriedStreams(self._device)
        self.runner = StageRunner(model, cut, self.links, streams, lambda: self.is_in_lane)

    def begin_pass(self) -> None:
        # An evaluation's waits are not the pass's.
        self.links.take_waits()
        self.clock.begin_pass()
        if self.runner is not None:
            self.runner.tied.begin_pass()

    def going_back(self) -> AbstractContextManager[None]:
        runner = self.runner
        return runner.gradients.going_back(runner.open_calls) if runner is not None else nullcontext()

    def may_lack(self) -> bool:
        return self.runner is not None and self.runner.gradients.lacks

    def end_lane(self) -> None:
        if self.runner is not None:
            self.runner.forget_calls()

    def end_pass(self) -> None:
        self.links.flush()
        self.clock.end_pass(self.links.take_waits())
        # [Note: why absent parameters have a gradient between pass and step]
        # torch's own clipping would leave out what has none, and clip by the norm of this rank's stage. A gradient on the meta
        # device makes it raise. Asking an absent parameter through its subclass would cost more than all of this.
        with DisableTorchFunctionSubclass():
            for parameter, stand_in in self._elsewhere:
                if parameter.requires_grad:
                    parameter.grad = stand_in

    def before_update(self, optimizer: Optimizer) -> None:
        if not any(optimizer is other for other in self._guarded):
            self._guarded.append(optimizer)
            self._guards.append(optimizer.register_state_dict_pre_hook(_refuse_partial_optimizer))

    def take_optimizer(self, optimizer: Optimizer, declared: str | None) -> None:
        updates_by(optimizer, declared, self.mesh.strategy)
        self._optimizers.append(optimizer)
        hidden: dict[Tensor, Tensor] = {}
        watch = StepWatch(
            optimizer,
            before=lambda: self._hide_absent(optimizer, hidden),
            after=lambda: _show_again(hidden),
            undo=lambda: _show_again(hidden),
            strategy=self.mesh.strategy,
        )
        self._guards.append(watch)

    def _hide_absent(self, optimizer: Optimizer, hidden: dict[Tensor, Tensor]) -> None:
        """Let the engine skip absent parameters. The script's hooks around it see gradients on the meta device."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in self._absent and parameter.grad is not None:
                    hidden[parameter], parameter.grad = parameter.grad, None

    def take_waited_s(self) -> float:
        return self.clock.take_waited_s()

    def report(self) -> dict[str, Any] | None:
        if self._cut is None:
            return None
        stage = self._cut.stages[self.links.stage]
        return {"layers": list(stage.layers), "cost_s": stage.cost_s, **self.clock.report()}

    def holder_of(self, tensor: Tensor) -> int | None:
        holder = self._holders.get(id(tensor))
        return None if holder is None else self.mesh.peers(holder)[0]

    def here(self, parameters: Sequence[nn.Parameter]) -> Sequence[nn.Parameter]:
        return [parameter for parameter in parameters if id(parameter) not in self._absent]

    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        here = [p.grad for p in parameters if p.grad is not None and not p.grad.is_meta]
        norms = self._transport.all_gather_object(chunk_norms(here, norm_type), "norm of gradients")
        return combine_norms([value for rank in self.mesh.members(0) for value in norms[rank]], norm_type)

    def close(self) -> None:
        for guard in self._guards:
            guard.remove()
        if self.runner is not None:
            self.runner.remove()
        for group in self._groups:
            group.close()


def _refuse_partial_model(module: nn.Module, _prefix: str, keep_vars: bool) -> None:
    if not keep_vars:
        raise UsageError(
            f"state_dict() of {type(module).__name__} would have the layers of this rank only.",
            "Call run.save_weights(model, path) or run.save_state(path) on every rank; state_dict(keep_vars=True) "
            "returns what this rank has.",
        )


def _show_again(hidden: dict[Tensor, Tensor]) -> None:
    for parameter, gradient in hidden.items():
        parameter.grad = gradient
    hidden.clear()


def _refuse_partial_optimizer(optimizer: Optimizer) -> None:
    raise UsageError(
        f"state_dict() of {type(optimizer).__name__} would have the state of this rank's layers only.",
        "Call run.save_state(path) on every rank.",
    )
