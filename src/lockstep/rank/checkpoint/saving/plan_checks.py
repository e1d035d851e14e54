"""What is compared before a state is loaded: whether its parts belong together, and fit the run's models. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.rank.checkpoint.saving.kept_gradients import kept_gradients
from lockstep.rank.checkpoint.saving.saved_streams import wrong_streams
from lockstep.rank.checkpoint.tensor_file import TensorFile
from lockstep.rank.data.stream import SavedStream
from lockstep.rank.run.position.modes import Modes
from lockstep.rank.run.run_state import RunState

UNCHANGED = "Use a state that has not been changed since run.save_state wrote it."


def checked_gradients(
    run: RunState, file: TensorFile | None, names: Mapping[int, str]
) -> list[tuple[Tensor, Tensor | None]]:
    """What each parameter's gradient becomes; nothing for a state between epochs, which has no file of them."""
    if file is None:
        return []
    known = {names[id(one)]: one for model in run.progress.models for one in model.parameters()}
    found = kept_gradients(file, known, UNCHANGED)
    return [(parameter, found.get(name)) for name, parameter in known.items() if not parameter.is_meta]


def wrong_inside(inside: Any, body_streams: Any, has_gradients: bool) -> str:
    """What does not belong together of a place inside an epoch; empty when all does."""
    if bool(inside) != has_gradients:
        return "its place inside an epoch and its gradients do not belong together"
    if body_streams is not None:
        return wrong_streams(body_streams)
    return "it has no random numbers of the epoch's beginning" if inside and inside["loop"] else ""


def checked_modes(told: Any, models: Sequence[nn.Module], *, may_lack: bool = False) -> Modes:
    """What the script had switched when the state was saved.

    Raises:
        UsageError: when lockstep does not write that for these models.
    """
    found = Modes.read(told, models, may_lack=may_lack)
    if found is None:
        raise UsageError("its modes of modules and parameters are not those of these models.", UNCHANGED)
    return found


def saved_stream(told: Any) -> SavedStream | None:
    """How a data set goes on by itself.

    Raises:
        UsageError: when lockstep does not write that.
    """
    saved = SavedStream(**told) if told is not None else None
    if saved is not None and not all(type(one) is int and one >= 0 for one in (saved.position, saved.size)):
        raise UsageError("its place of the data set is not described the way lockstep does it.", UNCHANGED)
    return saved


def unfit(place: Path, problem: str, fix: str) -> UsageError:
    """Say that the state in `place` is not one of this run."""
    return UsageError(f"{place} does not fit this run: {problem}", fix)
