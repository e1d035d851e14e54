"""`model_parallel`: consecutive layers on different ranks; each rank holds the parameters of its stage only.

The cut is decided in the first lane that calls the model, from that call: watched, measured, agreed on by all ranks.
Until then every rank has the whole model. Parameters of other stages become tensors on the meta device, the same
objects: an optimizer skips them, as their gradient is None when it steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.errors import UsageError
from lockstep.layout.mesh import Mesh
from lockstep.layout.placement import Placement
from lockstep.strategy.carried_streams import CarriedStreams
from lockstep.strategy.contract import PassResult, StepCut
from lockstep.strategy.ghost import replace_forward
from lockstep.strategy.model_cut import ModelCut, allowed_places, decide_cut
from lockstep.strategy.norm import chunk_norms, combine_norms
from lockstep.strategy.replica import Replica
from lockstep.strategy.stage import Links, StageRunner
from lockstep.strategy.stage_clock import StageClock
from lockstep.strategy.stage_cost import measure, unchanged
from lockstep.strategy.trace import trace
from lockstep.transport.contract import Transport


class Staged(Replica):
    """A replica's model in stages, one on each of its ranks.

    Args:
        mesh: stages and replicas.
        transport: all ranks.
        placement: lanes on replicas.
        device: of this rank.
    """

    def __init__(self, mesh: Mesh, transport: Transport, placement: Placement, device: torch.device) -> None:
        peers = transport.split([mesh.peers(stage) for stage in range(mesh.stages)])
        super().__init__(mesh.strategy, transport, placement, peers)
        replicas = [range(first, first + mesh.stages) for first in range(0, mesh.num_ranks, mesh.stages)]
        inside = [transport.split(replicas) for _ in range(3 if device.type == "cuda" else 1)]
        self._groups = [peers, *inside]
        self._links = Links((inside * 3)[:3], device)
        self._mesh, self._device = mesh, device
        self._part_of = tuple(mesh.stage(rank) for rank in range(mesh.num_ranks))
        self._wanted: tuple[str, ...] = ()
        self.clock = StageClock()
        self._runner: StageRunner | None = None
        self._cut: ModelCut | None = None
        self._restore_forward: Callable[[], None] = _nothing
        self._first_lane: int | None = None
        """The lane that waits for the model to be called and cut."""
        self._step_cut: tuple[StepCut, str] | None = None
        self._guards: list[Any] = []
        self._guarded: list[Optimizer] = []
        self._holders: dict[int, int] = {}
        """Stage of each parameter and written buffer, by identity."""

    def name_cuts(self, layers: Sequence[str]) -> None:
        """Let a stage begin with each of these layers."""
        self._wanted = (*self._wanted, *layers)

    def adopt(self, models: Sequence[nn.Module]) -> None:
        _refuse_models(models, self.name)
        super().adopt(models)
        self._restore_forward()
        self._restore_forward = replace_forward(models[0], self._first_call(models[0], models[0].forward))

    def _first_call(self, model: nn.Module, forward: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._first_lane is None or self._cut is not None:
                return forward(*args, **kwargs)  # evaluated before the first step: every rank has the whole model
            lane, self._first_lane = self._first_lane, None
            self._apply(self._agree_on_cut(self._look(model, lambda: forward(*args, **kwargs))))
            assert self._step_cut is not None
            super(Staged, self).begin_pass(*self._step_cut)
            self._begin_first_lane(lane)
            return model.forward(*args, **kwargs)

        return called

    def _begin_first_lane(self, lane: int) -> None:
        """The model is cut, and the lane that called it goes on."""
        super().begin_lane(lane)

    def _look(self, model: nn.Module, forward: Any) -> dict[str, Any] | str:
        """Decide how to cut; what was decided, or the sentence why not. The first stage's rank looks, for all."""
        if self._links.stage:
            return ""
        streams = CarriedStreams(self._device)
        streams.mark()
        try:
            with unchanged(model):
                seen = trace(model, forward)
                places = allowed_places(type(model).__name__, seen, self._mesh.stages, self._wanted)
                costs = measure(model, forward, places)
            return decide_cut(seen, places, costs, self._mesh.stages).encode()
        except UsageError as error:
            return str(error)
        finally:
            streams.unpack({}, ())

    def _agree_on_cut(self, mine: dict[str, Any] | str) -> ModelCut | None:
        """What the first rank that looked has decided; None when no lane has called the model. Every rank."""
        told = self._transport.all_gather_object(mine, "cut the model")
        found = next((one for one in told if one), None)
        if isinstance(found, str):
            raise UsageError(found)
        return ModelCut.decode(found) if found is not None else None

    def _apply(self, cut: ModelCut | None) -> None:
        """Keep this rank's stage; let go of the rest."""
        if cut is None:
            return
        [(_, model)] = self._models
        self._restore_forward()
        self._release_hooks()
        for parameter in self._arena.parameters:
            parameter.grad = None
        self._cut = cut
        stage, last = self._links.stage, self._mesh.stages - 1
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            holder = cut.holders.get(name, last if isinstance(tensor, nn.Parameter) else None)
            if holder is not None:
                self._holders[id(tensor)] = holder
            if holder not in (None, stage):
                self._absent.add(id(tensor))
                if isinstance(tensor, nn.Parameter):
                    _let_go(name, tensor)
        if self._transport.rank == 0:
            print(f"lockstep: stages {cut} (forward and backward of a lane)", file=sys.stderr)
        self._lay_out()
        self._guards = [model.register_state_dict_pre_hook(_refuse_partial_model)]  # type: ignore[no-untyped-call]
        self._runner = StageRunner(model, cut, self._links, CarriedStreams(self._device))

    def begin_pass(self, cut: StepCut, where: str) -> None:
        if self._cut is None:
            self._step_cut = (cut, where)
            return
        self._links.take_waits()  # what an evaluation waited is not the pass's
        super().begin_pass(cut, where)

    def begin_lane(self, lane: int) -> None:
        if self._cut is None:
            self._first_lane = lane
            return
        super().begin_lane(lane)

    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:
        self._present_runner()
        super().backward(loss, weight, retain_graph=retain_graph)

    def end_lane(self) -> None:
        if self._cut is None:
            self._first_lane = None
            return
        super().end_lane()
        self._present_runner().settle()

    def end_pass(self, notes: Mapping[int, Any]) -> PassResult:
        if self._cut is None:
            assert self._step_cut is not None
            self._apply(self._agree_on_cut(""))
            super().begin_pass(*self._step_cut)
        result = super().end_pass(notes)
        self._links.flush()
        self.clock.end_pass(self._links.take_waits())
        for parameter in self._models[0][1].parameters():
            if id(parameter) in self._absent and parameter.requires_grad:
                parameter.grad = torch.empty_like(
                    parameter
                )  # on meta: torch's own clipping raises, instead of being wrong
        return result

    def abandon(self) -> None:
        self._first_lane = None
        super().abandon()

    def before_update(self, optimizer: Optimizer) -> None:
        super().before_update(optimizer)
        if self._cut is not None and not any(optimizer is other for other in self._guarded):
            self._guarded.append(optimizer)
            self._guards.append(optimizer.register_state_dict_pre_hook(_refuse_partial_optimizer))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in self._absent:
                    parameter.grad = None

    def take_waited_s(self) -> float:
        return self.clock.take_waited_s()

    def report(self) -> dict[str, Any] | None:
        if self._cut is None:
            return None
        stage = self._cut.stages[self._links.stage]
        return {"layers": list(stage.layers), "cost_s": stage.cost_s, **self.clock.report()}

    def _present_runner(self) -> StageRunner:
        if self._runner is None:
            raise UsageError(
                f"The lane did not call the model as model(...), which is what {self.name} cuts into stages. Put what the "
                f"lane computes into forward, or use --strategy ddp."
            )
        return self._runner

    def holder_of(self, tensor: Tensor) -> int | None:
        holder = self._holders.get(id(tensor))
        return None if holder is None else self._mesh.peers(holder)[0]

    def clip_grad_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float) -> float:
        present = [parameter for parameter in parameters if id(parameter) not in self._absent]
        return super().clip_grad_norm(present, max_norm, norm_type)

    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        here = [p.grad for p in parameters if p.grad is not None and not p.grad.is_meta]
        told = self._transport.all_gather_object(chunk_norms(here, norm_type), "norm of gradients")
        first_replica = told[: self._mesh.stages]
        return combine_norms([value for values in first_replica for value in values], norm_type)

    def close(self) -> None:
        super().close()
        self._restore_forward()
        for guard in self._guards:
            guard.remove()
        if self._runner is not None:
            self._runner.remove()
        for group in self._groups:
            group.close()


def _nothing() -> None:
    """There is no forward to put back yet."""


def _refuse_models(models: Sequence[nn.Module], strategy: str) -> None:
    if len(models) > 1:
        raise UsageError(
            f"{strategy} cuts one model into stages, but {len(models)} were prepared. Make them parts of one nn.Module, or use "
            f"--strategy ddp."
        )
    for module in models[0].modules():
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:  # noqa: SLF001
            raise UsageError(
                f"{strategy} follows the model's forward, which a compiled {type(module).__name__} hides. Prepare it without "
                f"torch.compile, or use --strategy ddp."
            )


def _refuse_partial_model(module: nn.Module, _prefix: str, keep_vars: bool) -> None:
    if not keep_vars:
        raise UsageError(
            f"state_dict() of {type(module).__name__} would have the layers of this rank only. Call run.save_weights(model, path) "
            f"or run.save_state(path) on every rank; state_dict(keep_vars=True) gives what is here."
        )


def _refuse_partial_optimizer(optimizer: Optimizer) -> None:
    raise UsageError(
        f"state_dict() of {type(optimizer).__name__} would have the state of this rank's layers only. Call run.save_state(path) "
        f"on every rank."
    )


def _let_go(name: str, parameter: nn.Parameter) -> None:
    """The same object, on the meta device: its memory is free, its shape and dtype stay known."""
    ghost = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    try:
        torch.utils.swap_tensors(parameter, ghost)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise UsageError(
            f"The memory of {name!r} cannot be given back, because something else refers to it ({error}). Prepare the model "
            f"before anything keeps weak references or graphs of it."
        ) from error
