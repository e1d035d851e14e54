"""Strategies that cut a model into stages: the cut is decided in the first lane that calls the model, from that call.

It is watched (where can it be cut?) and measured (what do the parts cost?), and all ranks agree. Until then every rank
has the whole model, and an evaluation before the first step runs it as it is.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lockstep.errors import UsageError
from lockstep.layout.placement import Placement
from lockstep.strategy.carried_streams import CarriedStreams
from lockstep.strategy.contract import PassResult, StepCut
from lockstep.strategy.ghost import replace_method
from lockstep.strategy.model_cut import ModelCut, allowed_places, decide_cut
from lockstep.strategy.replica import Replica
from lockstep.strategy.stage_cost import measure, unchanged
from lockstep.strategy.trace import trace
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
        self._first_lane: int | None = None
        """The lane that waits for the model to be called and cut."""
        self._step_cut: tuple[StepCut, str] | None = None

    @abstractmethod
    def _install(self, model: nn.Module, cut: ModelCut) -> None:
        """Put the stages where they belong, and lay out what is here."""

    def name_cuts(self, layers: Sequence[str]) -> None:
        self._wanted = (*self._wanted, *layers)

    def adopt(self, models: Sequence[nn.Module]) -> None:
        _refuse_models(models, self.name)
        super().adopt(models)
        self._restore_forward()
        self._restore_forward = replace_method(models[0], "forward", self._first_call(models[0], models[0].forward))

    def _first_call(self, model: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._first_lane is None or self._cut is not None:
                return forward(*args, **kwargs)
            lane, self._first_lane = self._first_lane, None
            self._apply(self._agree(self._look(model, lambda: forward(*args, **kwargs))))
            assert self._step_cut is not None
            super(CutAtFirstCall, self).begin_pass(*self._step_cut)
            self._begin_first_lane(lane)
            return model.forward(*args, **kwargs)

        return called

    def _begin_first_lane(self, lane: int) -> None:
        """The model is cut, and the lane that called it goes on."""
        super().begin_lane(lane)

    def _look(self, model: nn.Module, forward: Callable[[], Any]) -> dict[str, Any] | str:
        """Decide how to cut: what was decided, or the sentence why not."""
        if not self._looks:
            return ""
        streams = CarriedStreams(self._device)
        streams.mark()
        try:
            with unchanged(model), torch.enable_grad():
                seen = trace(model, forward)
                places = allowed_places(type(model).__name__, seen, self._num_stages, self._wanted)
                costs = measure(model, forward, places)
            return decide_cut(seen, places, costs, self._num_stages).encode()
        except UsageError as error:
            return str(error)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
            return (
                f"{type(model).__name__} checkpoints activations with use_reentrant=True, which stages cannot carry. Pass "
                f"use_reentrant=False."
            )
        finally:
            streams.unpack({}, ())

    def _agree(self, mine: dict[str, Any] | str) -> ModelCut | None:
        """What the first rank that looked has decided; None when no lane has called the model. Every rank."""
        told = self._transport.all_gather_object(mine, "cut the model")
        found = next((one for one in told if one), None)
        if isinstance(found, str):
            raise UsageError(found)
        return ModelCut.decode(found) if found is not None else None

    def _apply(self, cut: ModelCut | None) -> None:
        if cut is None:
            return
        [(_, model)] = self._models
        self._restore_forward()
        self._restore_forward = _nothing
        self._release_hooks()
        self._cut = cut
        if self._transport.rank == 0:
            print(f"lockstep: stages {cut} (forward and backward of a lane)", file=sys.stderr)
        torch.clear_autocast_cache()  # its casts of weights, made by the look at the model, refer to where those are now
        self._install(model, cut)

    def begin_pass(self, cut: StepCut, where: str) -> None:
        if self._cut is None:
            self._step_cut = (cut, where)
        else:
            super().begin_pass(cut, where)

    def begin_lane(self, lane: int) -> None:
        if self._cut is None:
            self._first_lane = lane
        else:
            super().begin_lane(lane)

    def end_lane(self) -> None:
        if self._cut is None:
            self._first_lane = None
        else:
            super().end_lane()

    def end_pass(self, notes: Mapping[int, Any]) -> PassResult:
        if self._cut is None:
            assert self._step_cut is not None
            self._apply(self._agree(""))
            super().begin_pass(*self._step_cut)
        return super().end_pass(notes)

    def abandon(self) -> None:
        self._first_lane = None
        super().abandon()

    def _require_cut(self) -> None:
        """Raise `UsageError` when the present lane has not called the model."""
        if self._cut is None:
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
