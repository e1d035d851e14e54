"""What the script reads after a loop when the run resumes there, behind the loop's last iteration: `step.loss`, say.

Such a run has no iteration, so the names that the loop assigns would be missing. A state of that place has them, if each
is surely the same on every rank: the step, numbers from an exchange, the loop's own counter. A last snapshot that would
lack one is not taken.

    behind the last iteration               -> note_loop_variables    into `EpochState.left`, and so into every state of this place
    the run resumes there, without one      -> restore_loop_variables
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from samebits.errors import UsageError
from samebits.protocol.layout.cut import StepCut
from samebits.rank.checks.script.read_after_loop import left_variables, set_variable, variable
from samebits.rank.data.loader import Batches, StepPlan
from samebits.rank.run.loop.step import Step
from samebits.rank.run.loop.tally import Agreed
from samebits.rank.run.run_state import RunState
from samebits.rank.strategy.contract import PassResult
from samebits.rank.strategy.pass_loss import PassLoss

STEPS = "steps"
"""The loop over steps; a loop over epochs has its number."""
OF_A_STEP = ("number", "index", "num_samples")
NO_BATCHES = cast("Batches", ())
_MISSING = object()


def note_loop_variables(run: RunState, loop: str) -> None:
    """Keep what the loop around the caller leaves; None stands for what cannot be kept. Not collective."""
    if not run.loop_state.checkpointing.is_inside:
        return
    kept = [
        {name: _encoded(value, is_own=name in left.own) for name, value in _bound(frame, left.names)}
        for frame, left in left_variables()
    ]
    if any(kept):
        run.loop_state.epoch.left[loop] = kept


def restore_loop_variables(run: RunState, loop: str) -> None:
    """Give the variables to the loop around the caller, which has no turn left.

    Raises:
        UsageError: when one is missing that could not be kept.
    """
    for (frame, left), kept in zip(left_variables(), run.loop_state.epoch.left.get(loop, ()), strict=False):
        for name in left.names:
            value = _value(run, kept.get(name))
            if value is not None:
                set_variable(frame, name, value)
            elif name in kept and variable(frame, name, _MISSING) is _MISSING:
                raise UsageError(
                    f"The run resumes after the last iteration of a loop, where the script reads {name!r}, which no state has.",
                    "Read what every rank has, such as step.loss, or keep it in run.state.",
                )


def lacks_loop_variables(run: RunState) -> bool:
    """Whether the script reads a variable of its loop over steps behind it that cannot be kept."""
    return any(None in kept.values() for kept in run.loop_state.epoch.left.get(STEPS, ()))


def wrong_loop_variables(saved: Any) -> str:
    """What is wrong with what a state keeps of this, in words; empty when nothing is."""
    frames = [one for kept in saved.values() for one in kept] if isinstance(saved, dict) else [None]
    if all(isinstance(kept, dict) and all(map(_is_encoded, kept.values())) for kept in frames):
        return ""
    return "its variables behind loops are not described the way samebits does it"


def _is_encoded(value: Any) -> bool:
    if not isinstance(value, dict):
        return value is None or type(value) in (int, float)
    kinds = {name: type(part) for name, part in value.items()}
    loss = kinds.pop("loss", None)
    return kinds == dict.fromkeys(OF_A_STEP, int) and loss in (float, type(None))


def _bound(frame: Any, names: list[str]) -> list[tuple[str, Any]]:
    found = [(name, variable(frame, name, _MISSING)) for name in names]
    return [(name, value) for name, value in found if value is not _MISSING]


def _encoded(value: Any, *, is_own: bool) -> Any:
    """As a state keeps it."""
    if isinstance(value, Step):
        return {name: getattr(value, name) for name in OF_A_STEP} | {"loss": _loss_of(value)}
    if isinstance(value, Agreed):
        return float(value)
    return value if is_own and type(value) is int else None


def _loss_of(step: Step) -> float | None:
    try:
        return float(step.loss)
    except UsageError:
        return None


def _value(run: RunState, saved: Any) -> Any:
    if isinstance(saved, Mapping):
        cut = StepCut(saved["number"], (saved["num_samples"],), (1.0,))
        result = PassResult(PassLoss.known(saved["loss"]), {})
        return Step(run, StepPlan(cut, ()), NO_BATCHES, saved["index"], result)
    return Agreed(saved) if type(saved) is float else saved
