"""Optimizers and schedulers that are prepared between steps or epochs: a backbone is unfrozen, a rate begins anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lockstep.errors import UsageError
from lockstep.run.position.preparations import OPTIMIZER, SCHEDULER
from lockstep.run.run_state import RunState

DIVIDED = ("pipeline", "model_parallel", "hogwild", "dp")
"""Strategies under which everything is prepared before the loop."""


def refuse_late(run: RunState, things: Sequence[Any]) -> None:
    """Raise `UsageError` for what must be prepared before the first epoch or step."""
    for thing in things:
        if run.setup.mesh.strategy in DIVIDED or (
            run.progress.has_states_inside and isinstance(thing, (nn.Module, Tensor, DataLoader))
        ):
            kind = run.setup.mesh.strategy if run.setup.mesh.strategy in DIVIDED else type(thing).__name__
            raise UsageError(
                f"run.prepare was called after the first epoch or step, which {kind} does not allow.",
                "Prepare it before the loop; optimizers and schedulers may come later under ddp and zero1.",
            )


def number_all(run: RunState, taken: Sequence[Any], *, is_late: bool) -> None:
    """Give each optimizer and scheduler its number; late ones replace others, and take their part of a loaded state."""
    progress = run.progress
    for thing in taken:
        if isinstance(thing, (nn.Module, DataLoader)):
            continue
        if is_late and isinstance(thing, Optimizer):
            _replace(run, thing)
        label = progress.preparations.add(
            OPTIMIZER if isinstance(thing, Optimizer) else SCHEDULER, thing, is_late=is_late
        )
        if is_late:
            progress.last.left_steps()  # what it keeps of the last step lacks this one
            if progress.late is not None:
                progress.late.take(label)


def _replace(run: RunState, optimizer: Optimizer) -> None:
    """Let go of optimizers all of whose parameters, as far as the models still have them, are now those of this one."""
    progress = run.progress
    here = {id(parameter) for model in progress.models for parameter in model.parameters()}
    mine = _parameters_of(optimizer)
    for before in [one for one in progress.taken if isinstance(one, Optimizer) and one is not optimizer]:
        if progress.preparations.holds(before) and _parameters_of(before) & here <= mine:
            for gone in (before, *(one for one in progress.taken if getattr(one, "optimizer", None) is before)):
                progress.preparations.remove(gone)
                progress.taken[:] = [one for one in progress.taken if one is not gone]


def _parameters_of(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
