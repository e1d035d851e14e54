"""What a cut model needs from where its stages are: other ranks, or other devices of this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.rank.strategy.norm import gradient_norm
from lockstep.rank.strategy.replica.laid_out import LaidOut
from lockstep.rank.strategy.stages.cutting.model_cut import ModelCut


class Stages(ABC):
    """The stages of one model, once it is cut. Everything else is as if the whole model were on this rank."""

    num_stages: int
    is_in_lane = False
    """Whether a call of the model belongs to a lane right now; set by the pass."""

    @abstractmethod
    def install(self, model: nn.Module, cut: ModelCut, used: Collection[str], laid: LaidOut) -> None:
        """Put the stages where they belong, and lay out what is here.

        Args:
            model: the whole one; the same object stays.
            cut: the model's.
            used: names of tensors whose memory has other users.
            laid: where parameters and buffers are laid out.
        """

    def begin_pass(self) -> None:  # noqa: B027 - nothing to do
        """Begin a pass."""

    def going_back(self) -> AbstractContextManager[None]:
        """A context for a backward of the calls that the open lane has made."""
        return nullcontext()

    def may_lack(self) -> bool:
        """Whether the running backward may reach parameters with nothing."""
        return False

    def end_lane(self) -> None:  # noqa: B027
        """End the lane, which is over or left."""

    def end_pass(self) -> None:  # noqa: B027
        """End the pass; gradients are complete."""

    def take_optimizer(self, optimizer: Optimizer, said: str | None) -> None:  # noqa: B027
        """See `Strategy.take_optimizer`."""

    def before_update(self, optimizer: Optimizer) -> None:  # noqa: B027
        """See `Strategy.before_update`."""

    def here(self, parameters: Sequence[nn.Parameter]) -> Sequence[nn.Parameter]:
        """Those of `parameters` that this rank holds."""
        return parameters

    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        """See `Strategy.gradient_norm`."""
        return gradient_norm([p.grad for p in parameters if p.grad is not None], norm_type)

    def holder_of(self, tensor: Tensor) -> int | None:  # noqa: ARG002
        """See `Strategy.holder_of`."""
        return None

    def take_waited_s(self) -> float:
        """See `Strategy.take_waited_s`."""
        return 0.0

    def report(self) -> dict[str, Any] | None:
        """See `Strategy.report`."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Restore the model, except for the parameters that it does not have here."""
