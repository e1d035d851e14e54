"""The cut of a model: decided by the first lane that calls it, from that call.

Until then, every rank has the whole model and computes that whole lane, as one rank would; an evaluation before the
first step runs the model as it is. After the lane all ranks agree, and each keeps its stage's part, of the lane too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import InternalError, UsageError
from samebits.notices import say
from samebits.rank.strategy.other_users import with_other_users
from samebits.rank.strategy.replica.lane_pass import LanePass, ReplicaLane
from samebits.rank.strategy.replica.lanes import Lane
from samebits.rank.strategy.replica.replica import Replica
from samebits.rank.strategy.stages.contract import Stages
from samebits.rank.strategy.stages.cpu_offload import HostOffload, fits
from samebits.rank.strategy.stages.cutting.first_lane import FirstLane, digest_of_lane, refuse_different_lanes
from samebits.rank.strategy.stages.cutting.model_cut import ModelCut
from samebits.rank.strategy.stages.replaced_method import refuse_compiled, replace_method
from samebits.rank.transport.contract import Transport
from samebits.rank.transport.together import decode


class CutAtFirstCall:
    """The cut of a replica's model when a lane first calls it. Once the model is cut, it has nothing to do.

    Args:
        replica: holds the model.
        stages: where the parts go.
        looks: whether this rank decides for all; one in each replica does.
    """

    def __init__(
        self, replica: Replica, stages: Stages, transport: Transport, *, looks: bool, device: torch.device
    ) -> None:
        self._replica, self._stages, self._transport = replica, stages, transport
        self._looks, self._device = looks, device
        self._wanted: tuple[str, ...] = ()
        self.is_done = False
        self._restore_forward: Callable[[], None] = _nothing
        self._used: Collection[str] = ()
        """Names of tensors whose memory had other users when the first lane began."""
        self._offload: HostOffload | None = None
        """Set until the cut where the device cannot hold the whole model."""
        self._first: FirstLane | None = None
        """The open lane, until the model is cut."""

    def name_cuts(self, layers: Sequence[str]) -> None:
        self._wanted = (*self._wanted, *layers)

    def bring(self, model: nn.Module, device: torch.device) -> None:
        """See `Strategy.bring`. Collective: call it on every rank.

        Parameters of which the device cannot hold all come there after the cut, each to its stage.
        """
        if not self._transport.any(not fits(model, device), "memory of the model"):
            self._replica.bring(model, device)
            return
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(device)  # noqa: SLF001 - as `Module.to` does
        self._offload = HostOffload(model, device)

    def _offloaded(self) -> AbstractContextManager[None]:
        return self._offload.open() if self._offload is not None else nullcontext()

    def adopt(self, models: Sequence[nn.Module]) -> None:
        """Watch the calls of the model, which the replica holds."""
        self._restore_forward()
        self._restore_forward = replace_method(models[0], "forward", self._first_call(models[0].forward))

    def _first_call(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            with self._offloaded():
                if self._first is None:
                    return forward(*args, **kwargs)
                return self._first.call(lambda: forward(*args, **kwargs))

        return called

    @property
    def num_calls_with_gradients(self) -> int:
        """The number of calls of the model in the open lane."""
        return self._first.num_calls_with_gradients if self._first is not None else 0

    @property
    def has_called(self) -> bool:
        """Whether the open lane has called the uncut model."""
        return self._first is not None and self._first.num_calls > 0

    def begin_lane(self) -> None:
        """Begin a lane on the whole model."""
        layout = self._replica.layout
        [(_, model)] = layout.models
        refuse_compiled(model, self._replica.name)
        # Asked before the lane, because its own graph, which may live on, is no other user.
        self._used = with_other_users([*model.named_parameters(), *model.named_buffers()], layout.addresses)
        names = self._offload.names if self._offload is not None else {}
        self._first = FirstLane(model, self._looks, self._device, names)

    def going_back(self) -> AbstractContextManager[None]:
        """A context for a backward of the open lane."""
        return self._going_back(self._first) if self._first is not None else nullcontext()

    @contextmanager
    def _going_back(self, first: FirstLane) -> Iterator[None]:
        with self._offloaded(), first.going_back():
            yield

    def forget_lane(self) -> None:
        """Forget the open lane, which is over or left."""
        self._first = None

    def require_call(self) -> None:
        """Raise `UsageError` if the open lane has not called the model."""
        if not self.has_called:
            raise UsageError(
                f"The lane did not call the model as model(...), which is what {self._replica.name} cuts into stages.",
                "Put what the lane computes into forward, or use --strategy ddp.",
            )

    def behind_lane(self, current: LanePass, opened: ReplicaLane) -> tuple[LanePass, ReplicaLane]:
        """After the open lane, which every rank of the replica has computed: agree, cut, and keep what belongs here.

        Returns:
            The pass and the lane that continue in this rank's stage.
        """
        assert self._first is not None
        lane, layout = opened.gradients, self._replica.layout
        opened.check()
        trainable = layout.trainable
        # Taken before the cut, which gives `grad` of the parameters back to what it was before the pass.
        arrived = zip(trainable, lane.arrived(), strict=True)
        gradients = [parameter.grad if is_there else None for parameter, is_there in arrived]
        decided = self._first.decide(self._stages.num_stages, self._wanted)
        self._first.forget()
        cut = self._agree(lane.number, digest_of_lane(lane.losses, gradients), decided)
        if cut is None:
            raise InternalError("No rank has watched a call of the model that this rank made.")
        made = zip(trainable, gradients, strict=True)
        buffers = self._take_changes()
        again = self._apply(cut, current)
        here = again.open_lane(lane.number)
        self._put_back(
            lane, here, {id(parameter): gradient for parameter, gradient in made if gradient is not None}, buffers
        )
        here.backwards, here.range = opened.backwards, opened.range
        return again, here

    def behind_pass(self, current: LanePass) -> LanePass:
        """After a pass in which only other ranks' lanes may have called the model: return the pass that continues."""
        cut = self._agree(-1, "", None)
        return current if cut is None else self._apply(cut, current)

    def _take_changes(self) -> dict[tuple[nn.Module, str], Tensor]:
        """Return what the lane made of the buffers, 1-D, and restore what the pass began with."""
        bank = self._replica.layout.bank
        changes = bank.after_lane()
        entries = [bank.entries[index] for index in changes.entries]
        return {(entry.module, entry.key): changes.part(entry.segment) for entry in entries}

    def _put_back(
        self, lane: Lane, opened: ReplicaLane, gradients: Mapping[int, Tensor], buffers: Mapping[Any, Tensor]
    ) -> None:
        """Let the lane that was computed on the whole model continue in this rank's stage of it."""
        here, layout = opened.gradients, self._replica.layout
        here.weight, here.explicit, here.losses = lane.weight, lane.explicit, lane.losses
        for number, parameter in enumerate(layout.trainable):
            if (gradient := gradients.get(id(parameter))) is not None:
                here.take(number, gradient)
        here.backward_finished()
        for entry in layout.bank.entries:
            if (value := buffers.get((entry.module, entry.key))) is not None:
                layout.bank.set_run(entry.segment, value)

    def _agree(self, lane: int, digest: str, decided: dict[str, Any] | list[str] | None) -> ModelCut | None:
        """Return the cut; None when no lane has called the model. Collective: call it on every rank.

        The first rank that watched has decided it. Call it once per pass.

        Raises:
            UsageError: on every rank, when the model cannot be cut, or ranks got different results for the same lane.
        """
        reports = self._transport.all_gather_object([lane, digest, decided], "cut the model")
        found = next((one for _, _, one in reports if one), None)
        if isinstance(found, list):
            raise decode(found)
        refuse_different_lanes([(lane, digest) for lane, digest, _ in reports])
        return ModelCut.decode(found) if found is not None else None

    def _apply(self, cut: ModelCut, current: LanePass) -> LanePass:
        """Cut the model, and begin the pass, in which only the first lane has been computed, once more."""
        layout = self._replica.layout
        [(_, model)] = layout.models
        current.restore_gradients()
        current.let_go()
        self.close()
        layout.stop_watching()
        self.is_done = True
        if self._transport.rank == 0:
            say(f"stages {cut} (forward and backward of a lane)")
        # The first lane's casts of weights refer to where the weights lie now.
        torch.clear_autocast_cache()
        if self._offload is not None:
            self._offload.close()
            self._offload = None
        self._stages.install(model, cut, self._used, layout)
        return self._replica.begin_again(current, self._stages.may_lack)

    def close(self) -> None:
        """Give the model its own forward again."""
        self._restore_forward()
        self._restore_forward = _nothing


def _nothing() -> None:
    """Do nothing: there is no forward to put back."""
