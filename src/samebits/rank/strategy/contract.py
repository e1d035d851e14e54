"""What a step needs from a strategy, and the types that both use."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.protocol.layout.cut import StepCut
from samebits.protocol.layout.placement import Placement
from samebits.protocol.layout.schedule import Action, Kind
from samebits.rank.caller import where
from samebits.rank.strategy.pass_loss import PassLoss
from samebits.rank.strategy.precision import Precision


@dataclass(frozen=True)
class PassResult:
    """The result of a pass over a step's lanes; the same bits on every rank, for any number of ranks."""

    pass_loss: PassLoss
    """The lanes' losses."""
    rows: Mapping[str, Sequence[Any]]
    """What ranks reported, by name: a list by rank, None of those that reported nothing."""
    apart: tuple[int, ...] = ()
    """Ranks whose `seen` differed from rank 0's."""

    @property
    def loss(self) -> float | None:
        """The weighted mean of the lanes' losses; None when no lane called backward. Waits for it."""
        return self.pass_loss.mean


LaneObserver = Callable[[int, Sequence[Tensor], float, bool], None]
"""Called when a lane is over, for `samebits verify`: with the lane, its gradients before they are weighted (one flat tensor for
each dtype and device), what it counts, as the step will use it, and whether the script said so. It changes nothing."""


class OpenLane(ABC):
    """A lane that is being computed. What the script computes until `end` is in the run's precision."""

    @abstractmethod
    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:
        """Run the backward of a scalar loss. Several in one lane add up.

        Raises:
            UsageError: when the loss is not a scalar, does not require grad, or the lane's weights differ.
        """

    @abstractmethod
    def end(self) -> None:
        """Close the lane: scale its gradients, and merge them as far as the lane tree allows."""


class AnyPass(ABC):
    """A pass over a step's lanes. It ends by `end` or by `abandon`; by both, where `end` has lost another rank."""

    @abstractmethod
    def end(self, rows: Mapping[str, Any], seen: int) -> PassResult:
        """Reduce over ranks. Collective: call it on every rank.

        Afterwards `p.grad` holds the step's gradient, added to what it held before the pass.

        Args:
            rows: small JSON values of this rank by name, sent to every rank.
            seen: a digest of this rank's random streams outside the lanes; it is compared over the ranks.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Leave a pass unfinished: restore the gradients, reduce nothing. Calling it twice does no harm."""


class Pass(AnyPass):
    """A pass whose lanes are computed one after the other."""

    @abstractmethod
    def begin_lane(self, lane: int) -> OpenLane:
        """Begin a lane that is not empty; lanes come in order, each ended before the next.

        Buffers have the values that the step began with.
        """


class OrderedPass(AnyPass):
    """A pass that works on several lanes at a time, in its own order. The loop must be `step.backward(loss_of)`."""

    @abstractmethod
    def order(self, num_lanes: int) -> Sequence[Action]:
        """Order this rank's work on its `num_lanes` lanes of a pass, which are numbered by position."""

    def spare_s(self, kind: Kind) -> float:  # noqa: ARG002 - most never wait
        """Seconds for which this rank would only wait for another one if it began an action of this kind now."""
        return 0.0

    @abstractmethod
    def forward(self, lane: int, loss_of: Callable[[], Tensor]) -> None:
        """Run a lane's forward. `loss_of` calls the model once; what follows the call may only run elsewhere."""

    @abstractmethod
    def backward_of(self, lane: int) -> None:
        """Run the backward of a lane whose forward is done."""


class Strategy(ABC):
    """A model on ranks.

    On every rank, call `adopt` with all models, then for each pass over a step's lanes `begin_pass`, which returns the
    pass; see there for what comes next. A rank without lanes ends the pass at once.
    """

    name: str
    placement: Placement
    observers: list[LaneObserver]
    """The observers of lanes; the list may grow."""
    precision: Precision
    """The precision of forward passes, in lanes and evaluations."""
    is_ordered = False
    """Whether its passes are `OrderedPass`es."""
    # Not where a rank sees only part of the update, or where other ranks write to the parameters.
    takes_closures = True
    """Whether an optimizer may go through the lanes again inside its step, as LBFGS does."""

    def bring(self, model: nn.Module, device: torch.device) -> None:
        """Move a model to this rank's device, before `adopt`."""
        model.to(device)

    @abstractmethod
    def adopt(self, models: Sequence[nn.Module]) -> None:
        """Take the models: lay out their parameters and buffers, and watch their gradients.

        Raises:
            UsageError: when ranks disagree on names, shapes, dtypes or values, or a parameter cannot be carried.
        """

    @abstractmethod
    def begin_pass(self, cut: StepCut, where: str) -> Pass | OrderedPass:
        """Begin a pass. `where` is the user's source line, for messages."""

    @abstractmethod
    def clip_grad_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float) -> float:
        """Scale the gradients of `parameters` so that their norm is at most `max_norm`; return the norm before scaling.

        The norm is computed over fixed chunks in a fixed order, so its bits depend only on shapes and values.
        """

    @abstractmethod
    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        """Return the p-norm of the gradients of `parameters`. Collective: call it on every rank.

        It is computed over fixed chunks, wherever they are.
        """

    @abstractmethod
    def checksums(self, *, only_moving: bool = False) -> list[int]:
        """Sums over the bits of parameters and buffers: equal on two ranks if their models are; cheap to compute.

        Args:
            only_moving: only of buffers that are settled over the lanes after each pass, as statistics of BatchNorm are, with
                the values that the last pass began with: a difference between ranks does not outlive the pass. None where
                GPUs compare them themselves (`PassLoss.apart`).
        """

    @abstractmethod
    def tensors(self, *, only_moving: bool = False) -> list[tuple[str, Tensor]]:
        """The parameters and buffers that this rank holds and its replicas too, by name, in the same order on each.

        Args:
            only_moving: as in `checksums`.
        """

    @abstractmethod
    def restore_buffers(self) -> list[str]:
        """Restore the buffers of the last `keep_buffers`; return the names of those that had changed."""

    @abstractmethod
    def keep_buffers(self) -> None:
        """Remember the buffers' values. An evaluation must not change them: ranks see different samples there."""

    @abstractmethod
    def before_update(self, optimizer: Optimizer) -> None:
        """Called before each update. Raise `UsageError` if `optimizer` updates a parameter that its model has lost."""

    def take_optimizer(  # noqa: B027 - nothing to do
        self, optimizer: Optimizer, updates_by: str | None, require_same: Callable[[str], None]
    ) -> None:
        """Look after an optimizer of adopted parameters; by default do nothing, as each rank updates what it holds.

        Args:
            optimizer: stays the user's object.
            updates_by: "element" or "parameter": what the script declared about optimizers that samebits does not know.
            require_same: raises `UsageError`, at the script's current line, if ranks do not pass there equally often;
                takes what was called.

        Raises:
            UsageError: for an optimizer that this strategy cannot share out.
        """

    def whole_state(self, optimizer: Optimizer, *, everyone: bool) -> Mapping[Any, Any]:  # noqa: ARG002 - each rank has all
        """Return the optimizer's state by parameter, each one whole. Collective: call it on every rank.

        Args:
            optimizer: one that was taken.
            everyone: whether every rank gets the whole state if ranks keep parts of it; otherwise each parameter's
                state is on at least one rank.
        """
        return optimizer.state

    def carry_buffers(self, modules: Sequence[tuple[str, nn.Module]]) -> None:  # noqa: B027 - what stages hold is cut
        """Let lanes start from the same buffers of modules that are not trained too, by label (averages, teachers).

        Collective: call it on every rank, with the same modules.
        """

    @abstractmethod
    def set_buffer_rules(self, rules: Mapping[str, str]) -> None:
        """Set what counts for buffers that differ between lanes: patterns of names to "sum", "first", "mean", "min" or "max"."""

    def name_cuts(self, layers: Sequence[str]) -> None:
        """Begin a stage with each of these layers; only where a model is cut into stages.

        Raises:
            UsageError: when this strategy does not cut models.
        """
        if layers:
            raise UsageError(
                f"cut={list(layers)} is for model_parallel and pipeline, but the strategy is {self.name}.",
                "Leave cut= out, or use --strategy model_parallel.",
            )

    def take_waited_s(self) -> float:
        """Seconds for which lanes waited for other ranks since the last call."""
        return 0.0

    def report(self) -> dict[str, Any] | None:
        """Report how this rank's stage spent its time, as JSON values; None if there are no stages."""
        return None

    @property
    def gradient_bytes(self) -> int:
        """The memory of the gradients that this rank keeps: one lane's, and sums of lanes."""
        return 0

    def holder_of(self, tensor: Tensor) -> int | None:  # noqa: ARG002 - by default every rank holds everything
        """The first rank that holds a parameter or buffer; None when every rank does.

        If it is not None, the tensor may be on the meta device on other ranks, and files are written from the holder's
        values.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of the models: remove hooks; parameters stay usable."""


RIGHT_FORM = (
    "for step in run.steps(loader):\n    for batch in step:\n        run.backward(loss_of(batch))\n"
    "    optimizer.step()\n    optimizer.zero_grad()"
)

ORDERED_FORM = (
    "for step in run.steps(loader):\n    step.backward(lambda batch: loss_of(model, batch))  # calls the model once\n"
    "    optimizer.step()\n    optimizer.zero_grad()"
)
"""For strategies that do the lanes' forwards and backwards in their own order."""

INNER_FORM = (
    "A module that trains in forward does so with copies, whose gradients torch.autograd.grad returns:\n"
    "fast = {name: one - lr * gradient for (name, one), gradient in zip(inner.named_parameters(), gradients)}\n"
    "torch.func.functional_call(inner, fast, x)"
)


def misplaced(problem: str, fix: str) -> UsageError:
    """The error for a script that trains where it must not, with its line; where its forward does, with what that may do."""
    if threading.current_thread() is not threading.main_thread():
        # The thread of a GPU's backward has no line of the script.
        return UsageError(f"{problem}.", fix)
    return UsageError(f"{problem} ({where()}).", INNER_FORM if _is_in_forward() else fix)


_forms = [
    f"Call run.backward(loss) inside the step's lanes:\n{RIGHT_FORM}",
    f"Do this after the inner loop:\n{RIGHT_FORM}",
]


def name_forms(backward: str, behind: str) -> None:
    """From now on this is the help for `loss.backward()`, and for what belongs behind the lanes: another library has the loop."""
    _forms[:] = [backward, behind]


def behind_lanes() -> str:
    """The help for what a script does to gradients inside a lane."""
    return _forms[1]


def misplaced_backward() -> UsageError:
    """The error for `loss.backward()` instead of `run.backward(loss)`."""
    return misplaced(
        "loss.backward() was called on a prepared model, so the gradient would miss the other lanes", _forms[0]
    )


def _is_in_forward() -> bool:
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() costs milliseconds
    while frame.f_back is not None and frame.f_code.co_name != "forward":
        frame = frame.f_back
    return frame.f_code.co_name == "forward"
