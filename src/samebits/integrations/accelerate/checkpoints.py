"""Checkpoints of Accelerate and the Trainer, with samebits's own state in a folder of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.rank.caller import where
from samebits.rank.run.run import Run

STATE = "samebits"
"""The folder of samebits's state in a checkpoint."""


class CheckpointNumber:
    """The number of Accelerate's next checkpoint, as part of every state."""

    def __init__(self, configuration: Any, run: Run) -> None:
        self._configuration, self._run = configuration, run

    def agree(self) -> None:
        """Only the processes that were asked for a checkpoint have counted it. Collective: call it on every rank."""
        transport = self._run._run.components.transport
        numbers = transport.all_gather_object(int(self._configuration.iteration), "number of the checkpoint", where())
        self._configuration.iteration = max(numbers)

    def state_dict(self) -> dict[str, int]:
        """One number."""
        return {"iteration": int(self._configuration.iteration)}

    def load_state_dict(self, saved: dict[str, int]) -> None:
        """Go on from it."""
        self._configuration.iteration = saved["iteration"]


def require_own(folder: Path, whose: str) -> None:
    """Raise `UsageError` for a checkpoint without samebits's state: it does not say which samples were used."""
    if not folder.is_dir():
        raise UsageError(f"There is no checkpoint {folder}.", "Name the folder of one.")
    if not (folder / STATE).is_dir():
        raise UsageError(
            f"{folder} was not saved by samebits's {whose}, so it does not say which samples were used.",
            "Load its weights into the model, and begin to train anew.",
        )


def newest(project_dir: str) -> Path:
    """The newest of the checkpoints that Accelerate names by itself.

    Raises:
        UsageError: when there is none.
    """
    folder = Path(project_dir) / "checkpoints"
    found = sorted(folder.glob("checkpoint_*"), key=lambda one: int(one.name.rpartition("_")[2]))
    if not found:
        raise UsageError(f"There is no checkpoint in {folder}.", "Name its folder: load_state(folder).")
    return found[-1]


def place_of(run: Run) -> tuple[int, int]:
    """Epoch and finished steps of the state that was loaded."""
    state = run._run.loop_state
    inside = state.resumption.goes_on
    return state.epochs.resume_next, inside.done if inside is not None else 0


def check_skip(loaded: tuple[int, int] | None, num_batches: int, accumulation: int) -> None:
    """Raise `UsageError` for a script that would skip others than the batches that were used when the state was saved."""
    if loaded is None:
        raise UsageError("skip_first_batches needs a loaded state.", "Call accelerator.load_state before it.")
    epoch, steps = loaded
    if num_batches != steps * accumulation:
        raise UsageError(
            f"The state was saved after {steps} steps of epoch {epoch}, which are {steps * accumulation} batches, and the "
            f"script skips {num_batches}: it counts iterations, of which fewer processes have more.",
            "Count where accelerator.sync_gradients is true, and skip that number times gradient_accumulation_steps.",
        )
