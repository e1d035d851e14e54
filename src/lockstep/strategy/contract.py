"""What the step needs from a strategy, and the words that both use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.errors import UsageError
from lockstep.layout.cut import StepCut
from lockstep.layout.placement import Placement
from lockstep.layout.schedule import Action
from lockstep.strategy.precision import Precision


@dataclass(frozen=True)
class PassResult:
    """What a pass over a step's lanes gave; the same bits on every rank, whatever the number of ranks."""

    loss: float | None
    """The weighted mean of the lanes' losses; None when no lane called backward."""
    notes: dict[int, Any]
    """The notes of all lanes, in lane order."""
    apart: tuple[int, ...] = ()
    """Ranks whose `seen` was not that of rank 0."""


class LaneObserver:
    """Looks at what lanes compute, for `lockstep verify`. It changes nothing."""

    def begins(self, lane: int) -> None:
        """A lane's forward is next."""

    def has_loss(self, loss: Tensor) -> None:
        """The backward of `loss` is next."""

    def has_gradients(self, lane: int, gradients: Sequence[Tensor], weight: float, explicit: bool) -> None:
        """A lane is over.

        Args:
            lane: which.
            gradients: before they are weighted; one flat tensor for each dtype and device.
            weight: what the lane counts, as the step will use it.
            explicit: whether the script passed `weight=`.
        """


class OpenLane(ABC):
    """A lane whose forward and backward are being made. What the script computes until `end` is in the run's precision."""

    @abstractmethod
    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:
        """Backward of a scalar loss. Several in one lane add up.

        Raises:
            UsageError: when the loss is not a scalar, does not require grad, or the lane's weights differ.
        """

    @abstractmethod
    def end(self) -> None:
        """Close the lane; its gradients are scaled, and merged as far as the lane tree allows."""


class AnyPass(ABC):
    """A pass over a step's lanes. It ends once: by `end`, which every rank calls, or by `abandon`."""

    @abstractmethod
    def end(self, notes: Mapping[int, Any], seen: int) -> PassResult:
        """Reduce over ranks. Afterwards `p.grad` holds the step's gradient, added to what it held before the pass.

        Args:
            notes: small JSON values by lane, handed to every rank.
            seen: of this rank's random streams outside the lanes; it is compared over the ranks.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Leave a pass that will not be finished: give back what the gradients were, reduce nothing. Twice does no harm."""


class Pass(AnyPass):
    """A pass whose lanes are computed one after the other."""

    @abstractmethod
    def begin_lane(self, lane: int) -> OpenLane:
        """Begin a lane that is not empty; lanes come in order, each ended before the next. Buffers have the values that the
        step began with.
        """


class OrderedPass(AnyPass):
    """A pass that works on several lanes at a time, in an order of its own. The loop must be `step.backward(loss_of)`."""

    @abstractmethod
    def order(self, num_lanes: int) -> Sequence[Action]:
        """The work of this rank on its `num_lanes` lanes of a pass, which are named by their position."""

    @abstractmethod
    def forward(self, lane: int, loss_of: Callable[[], Tensor]) -> None:
        """The forward of a lane. `loss_of` calls the model once; what follows the call may run elsewhere only."""

    @abstractmethod
    def backward_of(self, lane: int) -> None:
        """The backward of a lane whose forward is done."""


class Strategy(ABC):
    """A model on ranks.

    On every rank: `adopt` with all models; then for each pass over a step's lanes `begin_pass`, which gives the pass; it says
    what comes next. A rank without lanes ends the pass at once.
    """

    name: str
    placement: Placement
    is_ordered = False
    """Whether its passes are `OrderedPass`."""
    takes_closures = True
    """Whether an optimizer may go through the lanes again inside its step, as LBFGS does. Not where a rank sees a part of the
    update only, or others write to the parameters."""

    @property
    @abstractmethod
    def observers(self) -> list[LaneObserver]:
        """Whoever looks at lanes; the list may grow."""

    @property
    @abstractmethod
    def precision(self) -> Precision:
        """Of forward passes. Lanes are computed in it, and evaluations."""

    @precision.setter
    @abstractmethod
    def precision(self, precision: Precision) -> None: ...

    @abstractmethod
    def adopt(self, models: Sequence[nn.Module]) -> None:
        """Take the models: lay out their parameters and buffers, watch their gradients.

        Raises:
            UsageError: when ranks disagree on names, shapes, dtypes or values, or a parameter cannot be carried.
        """

    @abstractmethod
    def begin_pass(self, cut: StepCut, where: str) -> Pass | OrderedPass:
        """Begin a pass. `where` is the user's source line, for messages."""

    @abstractmethod
    def clip_grad_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float) -> float:
        """Scale the gradients of `parameters` so that their norm is at most `max_norm`; the norm before scaling.

        The norm is computed over fixed chunks in a fixed order, so its bits depend on shapes and values only.
        """

    @abstractmethod
    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        """The p-norm of the gradients that `parameters` have, over fixed chunks, wherever they lie. Every rank must call it."""

    @abstractmethod
    def checksums(self) -> list[int]:
        """Sums over the bits of parameters and buffers: equal on two ranks when their models are, cheap to compute."""

    @abstractmethod
    def name_difference(self) -> str:
        """The first parameter or buffer that differs between ranks; empty when none does. Every rank must call it."""

    @abstractmethod
    def restore_buffers(self) -> list[str]:
        """Give buffers the values of the last `keep_buffers`; the names of those that had changed."""

    @abstractmethod
    def keep_buffers(self) -> None:
        """Remember the buffers' values, which an evaluation must not change: ranks see different samples there."""

    @abstractmethod
    def before_update(self, optimizer: Optimizer) -> None:
        """Called before each update. Raise `UsageError` when `optimizer` updates a parameter that its model no longer has."""

    def take_optimizer(  # noqa: B027 - nothing to do
        self, optimizer: Optimizer, updates_by: str | None, require_same: Callable[[str], None]
    ) -> None:
        """Look after an optimizer whose parameters were adopted; by default nothing, as every rank updates what it holds.

        Args:
            optimizer: stays the user's object.
            updates_by: "element" or "parameter", what the script said of optimizers that lockstep does not know.
            require_same: raises `UsageError` where the script is when ranks do not pass there equally often; takes what
                was called.

        Raises:
            UsageError: for an optimizer that this strategy cannot share out.
        """

    def whole_state(self, optimizer: Optimizer, *, everyone: bool) -> Mapping[Any, Any]:  # noqa: ARG002 - each rank has all
        """The optimizer's state by parameter, each one whole. Every rank must call it.

        Args:
            optimizer: that was taken.
            everyone: whether every rank gets the whole state, where ranks keep parts of it; otherwise each parameter's is on
                at least one rank.
        """
        return optimizer.state

    @abstractmethod
    def set_buffer_rules(self, rules: Mapping[str, str]) -> None:
        """Say what counts for buffers that differ between lanes: patterns of names to "first" or "mean"."""

    def name_cuts(self, layers: Sequence[str]) -> None:
        """Let a stage begin with each of these layers; only where a model is cut into stages.

        Raises:
            UsageError: when this strategy does not cut models.
        """
        if layers:
            raise UsageError(
                f"cut={list(layers)} is for model_parallel and pipeline, but the strategy is {self.name}.",
                "Leave cut= out, or use --strategy model_parallel.",
            )

    def take_waited_s(self) -> float:
        """Seconds since the last question in which lanes waited for other ranks."""
        return 0.0

    def report(self) -> dict[str, Any] | None:
        """How this rank's stage spent its time, as JSON values; None where there are no stages."""
        return None

    def holder_of(self, tensor: Tensor) -> int | None:  # noqa: ARG002 - by default every rank holds everything
        """The first rank that holds a parameter or buffer; None when every rank does.

        Where it is not None, the tensor may lie on the meta device on other ranks, and files are written from the holder's
        values.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of the models: hooks are removed, parameters stay usable."""
