"""What is prepared between steps or epochs: a new head, an optimizer for an unfrozen backbone, a loader of more data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lockstep.errors import UsageError
from lockstep.rank.data.loader import OWN_ORDER_FIX, own_order
from lockstep.rank.run.position.preparations import LOADER, MODEL, OPTIMIZER, SCHEDULER, Modes
from lockstep.rank.run.run_state import RunState

DIVIDED = ("pipeline", "model_parallel", "hogwild", "dp")
"""Strategies under which everything is prepared before the loop."""


def refuse_late(run: RunState) -> None:
    """Raise `UsageError` where everything must be prepared before the first epoch or step."""
    if (strategy := run.config.mesh.strategy) in DIVIDED:
        raise UsageError(
            f"run.prepare was called after the first epoch or step, which {strategy} does not allow.",
            "Prepare everything before the loop, or use --strategy ddp.",
        )


def number_all(run: RunState, taken: Sequence[Any], *, is_late: bool) -> None:
    """Give each thing its number; late ones replace others, and take their part of a loaded state."""
    loop_state = run.loop_state
    for thing in taken:
        if is_late and isinstance(thing, Optimizer):
            _replace(run, thing)
        loop_state.prepared.preparations.add(_kind(thing), thing, is_late=is_late)
        if is_late and isinstance(thing, nn.Module):
            _note_modes(run)
    if is_late:
        if loop_state.checkpointing.automatic.is_on and (problem := own_order(loop_state.prepared.loaders)):
            raise UsageError(problem, OWN_ORDER_FIX)
        if loop_state.resumption.late is not None:
            loop_state.resumption.late.rewind()
        loop_state.grow()


def _kind(thing: Any) -> str:
    if isinstance(thing, nn.Module):
        return MODEL
    return OPTIMIZER if isinstance(thing, Optimizer) else LOADER if isinstance(thing, DataLoader) else SCHEDULER


def _note_modes(run: RunState) -> None:
    """Let a state record what the script switches in new models from here on."""
    first = run.loop_state.first_modes
    if first is not None:
        now = Modes.of(run.loop_state.prepared.models)
        run.loop_state.first_modes = Modes({**now.training, **first.training}, {**now.trained, **first.trained})


def _replace(run: RunState, optimizer: Optimizer) -> None:
    """Let go of optimizers all of whose parameters, as far as the models still have them, are now those of this one."""
    loop_state = run.loop_state
    here = {id(parameter) for model in loop_state.prepared.models for parameter in model.parameters()}
    mine = _parameters_of(optimizer)
    for before in [one for one in loop_state.prepared.taken if isinstance(one, Optimizer) and one is not optimizer]:
        if loop_state.prepared.preparations.holds(before) and _parameters_of(before) & here <= mine:
            for gone in (
                before,
                *(one for one in loop_state.prepared.taken if getattr(one, "optimizer", None) is before),
            ):
                loop_state.prepared.preparations.remove(gone)
                loop_state.prepared.taken[:] = [one for one in loop_state.prepared.taken if one is not gone]


def _parameters_of(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


class LoneParameter(nn.Module):
    """The module that strategies, states and `verify` see in the parameter's place.

    Args:
        tensor: the script's own object, a leaf that requires a gradient.

    Raises:
        UsageError: when it is not one.
    """

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        if not tensor.is_leaf or not tensor.requires_grad:
            why = "was computed from others" if not tensor.is_leaf else "does not require grad"
            raise UsageError(
                f"run.prepare got a tensor of shape {tuple(tensor.shape)} that {why}, so no optimizer can train it.",
                "Pass nn.Parameter(...), or leave it out: constants and batches need no preparation.",
            )
        self._parameters["value"] = tensor  # type: ignore[assignment]  # torch's own registration wants nn.Parameter


CAPTURED = "make_graphed_callables."
"""How the qualified name of the forward begins that torch.cuda.make_graphed_callables puts into a module."""


def refuse_captured(model: nn.Module) -> None:
    """Refuse a model with a captured part: `prepare` lays parameters out anew, and its graphs would read the old ones.

    Raises:
        UsageError: with the part's name.
    """
    for name, part in model.named_modules():
        if getattr(vars(part).get("forward"), "__qualname__", "").startswith(CAPTURED):
            raise UsageError(
                f"run.prepare got a model whose {name or 'forward'} was captured by torch.cuda.make_graphed_callables: its "
                f"graphs would go on reading parameters where they no longer are.",
                "Prepare the model first, and capture it then.",
            )
