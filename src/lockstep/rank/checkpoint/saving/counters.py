"""Where a run is, as a state says it: steps, epochs, losses, the place in an epoch and in its data set."""

from __future__ import annotations

from typing import Any

from lockstep.errors import UsageError
from lockstep.rank.checkpoint.exact_json import encode
from lockstep.rank.data.stream import PreparedStream
from lockstep.rank.run.loop.loss_gauge import settle_losses
from lockstep.rank.run.loop_state import LoopState
from lockstep.rank.run.position.epoch_count import InsideEpoch
from lockstep.rank.run.run_state import RunState

STREAM = "place of the data set"


def counters(run: RunState, going: InsideEpoch | None, *, with_tallies: bool = True) -> dict[str, Any]:
    """Where the run is; the same on every rank. `going`: where in an epoch whose steps have begun."""
    settle_losses(run)
    step_timer, inside = run.components.step_timer, going or run.loop_state.resumption.goes_on
    return {
        "step": step_timer.step,
        "epoch": step_timer.epoch,
        "num_losses": step_timer.num_losses,
        "loss": step_timer.loss,
        "epochs_seen": list(run.loop_state.epoch.epochs_seen),
        "accounts": list(run.loop_state.epoch.accounts),
        "epochs": run.loop_state.epochs.position(inside=inside is not None),
        "inside": None if inside is None else {**vars(inside)},
        "stream": _stream(run.loop_state) if inside is not None else None,
        **(
            {"late": late}
            if (late := run.loop_state.prepared.preparations.late(runs_again=inside is not None)) is not None
            else {}
        ),
        **({"tallies": run.loop_state.tallies.encode(inside=inside is not None)} if with_tallies else {}),
        "options": run.loop_state.prepared.preparations.options.by_label,
        "loaders": [
            {
                "epochs_begun": loader.epochs_begun - (going is not None and going.loader == number),
                "samples": None if isinstance(loader, PreparedStream) else len(loader.dataset),  # type: ignore[arg-type]
                "batch_size": loader.batch_size,
            }
            for number, loader in enumerate(run.loop_state.prepared.loaders)
        ],
    }


def _stream(loop_state: LoopState) -> dict[str, Any] | None:
    """What the data set itself keeps of its place in the epoch; None where it has no `state_dict`, or an odd one."""
    steps = loop_state.epoch.reading() if loop_state.epoch.reading is not None else None
    saved = loop_state.resumption.goes_on_stream or (steps.saved if steps is not None else None)
    record = None if saved is None else {name: getattr(saved, name) for name in ("state", "position", "size", "after")}
    try:
        encode(record, STREAM, lambda path, _: path)
    except UsageError:
        return None  # it is read from its beginning again
    return record
