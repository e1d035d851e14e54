"""`model_parallel` and `pipeline`: a replica's model in stages, cut when a lane first calls it.

It is made of where the stages are (`Stages`) and how a pass goes through them (`StagedPass`, `PipelinePass`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.protocol.layout.cut import StepCut
from samebits.rank.strategy.agreement import refuse_spread
from samebits.rank.strategy.contract import OrderedPass, Pass
from samebits.rank.strategy.delegating import DelegatingStrategy
from samebits.rank.strategy.norm import clip, require_norm_type
from samebits.rank.strategy.replica.lane_pass import LanePass
from samebits.rank.strategy.replica.replica import Replica
from samebits.rank.strategy.stages.contract import Stages
from samebits.rank.strategy.stages.cut_at_first_call import CutAtFirstCall
from samebits.rank.strategy.stages.replaced_method import refuse_compiled

MakePass = Callable[[LanePass], Pass | OrderedPass]
"""Makes a pass from the replica's."""


class CutModel(DelegatingStrategy):
    """A model in stages.

    Args:
        replica: holds the whole model, and after the cut this rank's part of it.
        cutting: cuts it.
        stages: where the parts are.
        make_pass: how a pass goes through the stages.
        is_ordered: whether those passes are `OrderedPass`es.
    """

    takes_closures = False

    def __init__(
        self,
        replica: Replica,
        cutting: CutAtFirstCall,
        stages: Stages,
        make_pass: MakePass,
        *,
        is_ordered: bool = False,
    ) -> None:
        super().__init__(replica)
        self._replica, self._cutting, self._stages = replica, cutting, stages
        self._make_pass, self.is_ordered = make_pass, is_ordered

    def name_cuts(self, layers: Sequence[str]) -> None:
        self._cutting.name_cuts(layers)

    def bring(self, model: nn.Module, device: torch.device) -> None:
        self._cutting.bring(model, device)

    def adopt(self, models: Sequence[nn.Module]) -> None:
        _refuse_models(models, self.name)
        self._replica.adopt(models)
        self._cutting.adopt(models)

    def begin_pass(self, cut: StepCut, where: str) -> Pass | OrderedPass:
        self._stages.begin_pass()
        is_cut = self._cutting.is_done
        may_lack = self._stages.may_lack if is_cut else None
        return self._make_pass(self._replica.begin_pass(cut, where, may_lack=may_lack, begins_early=is_cut))

    def take_optimizer(self, optimizer: Optimizer, updates_by: str | None, require_same: Callable[[str], None]) -> None:
        self._replica.take_optimizer(optimizer, updates_by, require_same)
        self._stages.take_optimizer(optimizer, updates_by)

    def before_update(self, optimizer: Optimizer) -> None:
        self._replica.before_update(optimizer)
        if self._cutting.is_done:
            self._stages.before_update(optimizer)

    def clip_grad_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float) -> float:
        require_norm_type(norm_type)
        # Each rank scales what it holds, by the norm over all stages.
        here = self._stages.here(parameters)
        norm = self._stages.gradient_norm(here, norm_type)
        clip([parameter.grad for parameter in here if parameter.grad is not None], norm, max_norm)
        return norm

    def gradient_norm(self, parameters: Iterable[nn.Parameter], norm_type: float) -> float:
        return self._stages.gradient_norm(parameters, norm_type)

    def holder_of(self, tensor: Tensor) -> int | None:
        return self._stages.holder_of(tensor)

    def take_waited_s(self) -> float:
        return self._stages.take_waited_s()

    def report(self) -> dict[str, Any] | None:
        return self._stages.report()

    def close(self) -> None:
        self._replica.close()
        self._cutting.close()
        self._stages.close()


def _refuse_models(models: Sequence[nn.Module], strategy: str) -> None:
    refuse_spread(models, strategy)
    if len(models) > 1:
        raise UsageError(
            f"{strategy} cuts one model into stages, but {len(models)} were prepared.",
            "Make them parts of one nn.Module, or use --strategy ddp.",
        )
    refuse_compiled(models[0], strategy)
