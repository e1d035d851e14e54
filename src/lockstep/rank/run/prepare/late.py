"""What is prepared between steps or epochs: a new head, an optimizer for an unfrozen backbone, a loader of more data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lockstep.errors import UsageError
from lockstep.rank.data.acceptance import OWN_ORDER_FIX, own_order
from lockstep.rank.run.position.modes import Modes
from lockstep.rank.run.position.preparations import LOADER, MODEL, OPTIMIZER, SCHEDULER
from lockstep.rank.run.run_state import RunState

DIVIDED = ("pipeline", "model_parallel", "hogwild", "dp")
"""Strategies under which everything is prepared before the loop."""


def refuse_late(run: RunState) -> None:
    """Raise `UsageError` where everything must be prepared before the first epoch or step."""
    if (strategy := run.setup.mesh.strategy) in DIVIDED:
        raise UsageError(
            f"run.prepare was called after the first epoch or step, which {strategy} does not allow.",
            "Prepare everything before the loop, or use --strategy ddp.",
        )


def number_all(run: RunState, taken: Sequence[Any], *, is_late: bool) -> None:
    """Give each thing its number; late ones replace others, and take their part of a loaded state."""
    progress = run.progress
    for thing in taken:
        if is_late and isinstance(thing, Optimizer):
            _replace(run, thing)
        progress.preparations.add(_kind(thing), thing, is_late=is_late)
        if is_late and isinstance(thing, nn.Module):
            _note_modes(run)
    if is_late:
        if progress.automatic.is_on and (problem := own_order(progress.loaders)):
            raise UsageError(problem, OWN_ORDER_FIX)
        if progress.late is not None:
            progress.late.rewind()
        progress.grow()


def _kind(thing: Any) -> str:
    if isinstance(thing, nn.Module):
        return MODEL
    return OPTIMIZER if isinstance(thing, Optimizer) else LOADER if isinstance(thing, DataLoader) else SCHEDULER


def _note_modes(run: RunState) -> None:
    """Let a state tell what the script switches in new models from here on."""
    first = run.progress.first_modes
    if first is not None:
        now = Modes.of(run.progress.models)
        run.progress.first_modes = Modes({**now.training, **first.training}, {**now.trained, **first.trained})


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
