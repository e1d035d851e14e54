"""Strategies that cut a model into stages: the cut is decided by the first lane that calls the model, from that call.

Every rank has the whole model until then and computes that lane whole, as one rank would; an evaluation before the first
step runs it as it is. Behind the lane all ranks agree, and each keeps what belongs to its stage, of the lane too.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.errors import PromiseBroken, UsageError
from lockstep.layout.placement import Placement
from lockstep.strategy.contract import PassResult, StepCut
from lockstep.strategy.other_users import with_other_users
from lockstep.strategy.replica.lane import Lane
from lockstep.strategy.replica.replica import Replica
from lockstep.strategy.stages.cutting.first_lane import FirstLane, digest_of_lane, refuse_different_lanes
from lockstep.strategy.stages.cutting.model_cut import ModelCut
from lockstep.strategy.stages.replaced_method import replace_method
from lockstep.transport.contract import Transport


class CutAtFirstCall(Replica):
    """A replica's model is cut when it is first called in a lane. See `Replica`.

    Args:
        num_stages: how many stages.
        looks: whether this rank decides for all; of each replica one does.
        device: of this rank.
    """

    takes_closures = False

    def __init__(  # noqa: PLR0917 - what a replica takes, and what a cut needs
        self,
        name: str,
        transport: Transport,
        placement: Placement,
        peers: Transport,
        num_stages: int,
        looks: bool,
        device: torch.device,
    ) -> None:
        super().__init__(name, transport, placement, peers)
        self._num_stages, self._looks, self._device = num_stages, looks, device
        self._wanted: tuple[str, ...] = ()
        self._cut: ModelCut | None = None
        self._restore_forward: Callable[[], None] = _nothing
        self._used: set[str] = set()
        """Names of tensors whose memory something else uses too, when the first lane began."""
        self._first: FirstLane | None = None
        """The present lane, until the model is cut."""

    @abstractmethod
    def _install(self, model: nn.Module, cut: ModelCut) -> None:
        """Put the stages where they belong, and lay out what is here."""

    def name_cuts(self, layers: Sequence[str]) -> None:
        self._wanted = (*self._wanted, *layers)

    def adopt(self, models: Sequence[nn.Module]) -> None:
        _refuse_models(models, self.name)
        super().adopt(models)
        self._restore_forward()
        self._restore_forward = replace_method(models[0], "forward", self._first_call(models[0].forward))

    def _first_call(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._lane is None or self._first is None:
                return forward(*args, **kwargs)
            return self._first.call(lambda: forward(*args, **kwargs))

        return called

    def begin_pass(self, cut: StepCut, where: str) -> None:
        self._pass_begun = (cut, where, self._last_step)
        super().begin_pass(cut, where)

    def begin_lane(self, lane: int) -> None:
        super().begin_lane(lane)
        if self._cut is None:
            [(_, model)] = self._models
            # Before the lane: its own graph, which may live on, is no other user.
            self._used = with_other_users([*model.named_parameters(), *model.named_buffers()], self._laid())
            self._first = FirstLane(model, self._looks, self._device)

    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:
        self._require_call()
        with self._first.going_back() if self._first is not None else nullcontext():
            super().backward(loss, weight, retain_graph=retain_graph)

    def end_lane(self) -> None:
        if self._cut is None and self._first is not None and self._first.num_calls:
            self._cut_behind_lane()
        super().end_lane()
        self._first = None

    def end_pass(self, notes: Mapping[int, Any]) -> PassResult:
        if self._cut is None and (cut := self._agree(-1, "", "")) is not None:
            self._apply(cut)
        return super().end_pass(notes)

    def abandon(self) -> None:
        self._first = None
        super().abandon()

    def _may_begin_early(self, current: Any, lane: Any) -> bool:
        return self._cut is not None and super()._may_begin_early(current, lane)

    def _cut_behind_lane(self) -> None:
        """The present lane is computed, by every rank of the replica: agree, cut, and keep what belongs here."""
        assert self._first is not None
        lane, current = self._present_lane(), self._present_pass()
        lane.check_untouched()
        self._check_parameters(current)
        arrived = zip(self.trainable, lane.arrived(), strict=True)
        gradients = [parameter.grad if is_there else None for parameter, is_there in arrived]
        decided = self._first.decide(self._num_stages, self._wanted)
        self._first.forget()
        cut = self._agree(lane.number, digest_of_lane(lane.losses, gradients), decided)
        if cut is None:
            raise PromiseBroken("No rank has watched a call of the model that this rank made.")
        made = zip(self.trainable, gradients, strict=True)
        buffers = self._take_changes()
        self._apply(cut)
        Replica.begin_lane(self, lane.number)
        self._put_back(lane, {id(parameter): gradient for parameter, gradient in made if gradient is not None}, buffers)
        self._present_pass().backwards = current.backwards

    def _take_changes(self) -> dict[tuple[nn.Module, str], Tensor]:
        """What the lane made of the buffers, 1-D; the module has what the pass began with again."""
        bank = self._present_bank()
        changes = bank.after_lane()
        entries = [bank.entries[index] for index in changes.entries]
        return {(entry.module, entry.key): changes.part(entry.segment) for entry in entries}

    def _put_back(self, lane: Lane, gradients: Mapping[int, Tensor], buffers: Mapping[Any, Tensor]) -> None:
        """The lane that was computed on the whole model goes on in this rank's stage of it."""
        here, bank = self._present_lane(), self._present_bank()
        here.weight, here.explicit, here.losses = lane.weight, lane.explicit, lane.losses
        for number, parameter in enumerate(self.trainable):
            if (gradient := gradients.get(id(parameter))) is not None:
                here.take(number, gradient)
        here.backward_finished()
        for index, entry in enumerate(bank.entries):
            if (value := buffers.get((entry.module, entry.key))) is not None:
                bank.set(index, value)

    def _agree(self, lane: int, digest: str, decided: dict[str, Any] | str) -> ModelCut | None:
        """What the first rank that watched has decided; None when no lane has called the model. Every rank, once in a pass.

        Raises:
            UsageError: on every rank, when the model cannot be cut, or ranks computed the same lane with other results.
        """
        told = self._transport.all_gather_object([lane, digest, decided], "cut the model")
        found = next((one for _, _, one in told if one), None)
        if isinstance(found, str):
            raise UsageError(found)
        refuse_different_lanes([(lane, digest) for lane, digest, _ in told])
        return ModelCut.decode(found) if found is not None else None

    def _apply(self, cut: ModelCut) -> None:
        """Cut the model, and begin the pass once more, in which nothing but the first lane was computed."""
        [(_, model)] = self._models
        for parameter, before in zip(self.trainable, self._present_pass().held, strict=True):
            parameter.grad = before
        self._pass, self._lane = None, None
        self._restore_forward()
        self._restore_forward = _nothing
        self._release_hooks()
        self._cut = cut
        if self._transport.rank == 0:
            print(f"lockstep: stages {cut} (forward and backward of a lane)", file=sys.stderr)
        torch.clear_autocast_cache()  # its casts of weights, made by the first lane, refer to where those are now
        self._install(model, cut)
        step_cut, where, self._last_step = self._pass_begun
        Replica.begin_pass(self, step_cut, where)

    def _require_call(self) -> None:
        """Raise `UsageError` when the model is not cut, and the present lane has not called it."""
        if self._cut is None and (self._first is None or not self._first.num_calls):
            raise UsageError(
                f"The lane did not call the model as model(...), which is what {self.name} cuts into stages. Put what the "
                f"lane computes into forward, or use --strategy ddp."
            )

    def close(self) -> None:
        super().close()
        self._restore_forward()


def _nothing() -> None:
    """There is no forward to put back."""


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
