"""`--track`: every value of `run.log` reaches TensorBoard or Weights & Biases once, in order, through kills and resumes.

The launcher outlives the ranks, so it passes the lines of `metrics.jsonl` on, in a thread of its own: a step waits for
nothing, and a network that hangs holds nobody up but that thread.

Runs in: a thread of the launcher, named samebits-tracker.
"""

from __future__ import annotations

import importlib.util
import json
import math
import secrets
import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.request import LaunchRequest
from samebits.launcher.terminal.report import Line
from samebits.launcher.terminal.terminal import Console
from samebits.machine.growing_file import GrowingFile
from samebits.protocol.events import Event, EventReader, Kind, finite
from samebits.protocol.metric_lines import Delivered, decoded, values_of
from samebits.protocol.run_folder import RunFolder, read_json, write_private

TRACKERS = ("tensorboard", "wandb")
EVERY_S = 1.0
FINISH_S = 60.0
"""How long a tracker may take at the end to send what it has."""
MEMORY = "tracked.json"
"""In the folder of a run, or of a named run's starts: each tracker's run id, and what it was given last."""


PARENT = "parent"
"""In the run's settings: from which run it was branched. No `fork_from` of wandb, which asks its server for that run."""


class Tracker(ABC):
    """One run in somebody's tracker. All calls come from one thread."""

    @abstractmethod
    def log(self, step: int, time_s: float, values: dict[str, float]) -> None:
        """Take what was logged at a step."""

    @abstractmethod
    def note(self, tag: str, step: int, time_s: float, text: str) -> None:
        """Show a sentence: from which run this one was branched; that a rank was killed."""

    @abstractmethod
    def finish(self, exit_code: int) -> None:
        """The run is over."""


class TensorBoard(Tracker):
    """Event files, written by TensorBoard's own writer, which calls a run by the folder that they are in."""

    def __init__(self, folder: Path) -> None:
        self._event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        writer = import_module("tensorboard.summary.writer.event_file_writer")
        self._writer = writer.EventFileWriter(str(folder))

    def log(self, step: int, time_s: float, values: dict[str, float]) -> None:
        parts = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event(wall_time=time_s, step=step, summary=self._summary(value=parts)))

    def note(self, tag: str, step: int, time_s: float, text: str) -> None:
        """As a text of TensorBoard's text plugin."""
        tensors, kinds = (
            import_module("tensorboard.compat.proto.tensor_pb2"),
            import_module("tensorboard.compat.proto.types_pb2"),
        )
        about = import_module("tensorboard.compat.proto.summary_pb2").SummaryMetadata
        tensor = tensors.TensorProto(dtype=kinds.DT_STRING, string_val=[text.encode()])
        how = about(plugin_data=about.PluginData(plugin_name="text"))
        value = self._summary.Value(tag=f"{tag}/text_summary", tensor=tensor, metadata=how)
        self._writer.add_event(self._event(wall_time=time_s, step=step, summary=self._summary(value=[value])))

    def finish(self, exit_code: int) -> None:  # noqa: ARG002 - event files do not say how a run ended
        self._writer.close()


class WandB(Tracker):
    """A run of Weights & Biases; where it goes is set by wandb's own variables (WANDB_PROJECT, WANDB_MODE, ...)."""

    def __init__(self, run_id: str, name: str, folder: Path, config: dict[str, Any]) -> None:
        wandb = import_module("wandb")
        settings = wandb.Settings(console="off", disable_git=True, silent=True)
        self._run = wandb.init(id=run_id, name=name, resume="allow", dir=str(folder), config=config, settings=settings)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, time_s: float, values: dict[str, float]) -> None:  # noqa: ARG002 - wandb has its own clock
        self._run.log({**values, "step": step})

    def note(self, tag: str, step: int, time_s: float, text: str) -> None:
        """Nothing more: the parent is in the run's config, and wandb has no texts by step."""

    def finish(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)


def check_trackers(names: Sequence[str]) -> None:
    """Raise `UsageError` for a tracker that is not known, or whose library is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"There is no tracker {name!r}.", f"Choose {' or '.join(TRACKERS)}.")
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"--track {name} needs {name}, which is not installed.", f"Install it: pip install {name}")


def pass_on(event: Event, tracker: Tracker) -> None:
    """Show what the launcher saw: speed, where the time goes, the memory of all ranks; and kills as texts."""
    if event.kind is Kind.PACE:
        numbers = {name: event.number(name) for name in ("samples_per_s", "step_ms")}
        shares, memory = event.fields.get("shares"), event.fields.get("memory")
        numbers |= {f"time_{part}": finite(share) for part, share in shares.items()} if isinstance(shares, dict) else {}
        numbers |= {"memory_mib": sum(map(finite, memory)) / 2**20} if isinstance(memory, list) else {}
        known = {f"samebits/{name}": number for name, number in numbers.items() if math.isfinite(number)}
        tracker.log(event.step, event.time_s, known)
    elif event.kind in {Kind.KILL, Kind.RESTART}:
        said = event.said or f"rank {event.fields.get('rank')} was killed by {event.fields.get('signal')}"
        tracker.note(f"samebits/{event.kind}", event.step, event.time_s, said)


class Tracking:
    """Passes on what is logged, until `close`.

    Args:
        names: the trackers.
        folder: the run's.
        memory: the folder that the next start of the same run has too.
        name: the run's, for people.
        config: what the tracker shows as the run's settings.
        say: prints a sentence.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: RunFolder,
        *,
        memory: Path,
        name: str,
        config: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._names, self._memory = tuple(names), memory / MEMORY
        self._lines, self._events = GrowingFile(folder.metrics), EventReader(folder.events)
        self._num_events = 0
        self._name, self._config, self._say = name, config, say
        self._end, self._exit_code = threading.Event(), 0
        self._thread = threading.Thread(target=self._work, name="samebits-tracker", daemon=True)
        self._thread.start()

    def close(self, exit_code: int) -> None:
        """Pass on the rest, and end; say so where a tracker does not."""
        self._exit_code = exit_code
        self._end.set()
        self._thread.join(FINISH_S)
        if self._thread.is_alive():
            self._say(
                f"the tracker did not end within {FINISH_S:.0f} s: what it was not given is in {self._lines.path}"
            )

    def _work(self) -> None:
        try:
            known = read_json(self._memory)
            trackers = {name: self._opened(name, known.get(name)) for name in self._names}
            while True:
                is_last = self._end.wait(EVERY_S)
                self._pass_on(trackers)
                if is_last:
                    break
            for tracker, _, _ in trackers.values():
                tracker.finish(self._exit_code)
        except Exception as error:  # noqa: BLE001 - somebody else's library; the run continues without it
            self._say(f"the tracker failed and gets nothing more: {type(error).__name__}: {error}")

    def _opened(self, name: str, before: object) -> tuple[Tracker, Delivered, str]:
        known = before if isinstance(before, dict) else {}
        run_id = known["id"] if isinstance(known.get("id"), str) else secrets.token_hex(4)
        step, lines = known.get("step"), known.get("lines")
        delivered = Delivered()
        if type(step) is int and isinstance(lines, list):
            delivered = Delivered(step, Counter(map(str, lines)))
        # Before the tracker learns the id: a start that is killed in between resumes the same run there.
        self._remember(name, run_id, delivered)
        folder = self._memory.parent
        tracker = TensorBoard(folder) if name == "tensorboard" else WandB(run_id, self._name, folder, self._config)
        if not known and PARENT in self._config:
            tracker.note("parent", 0, time.time(), f"branched from {self._config[PARENT]}")
        return tracker, delivered, run_id

    def _pass_on(self, trackers: dict[str, tuple[Tracker, Delivered, str]]) -> None:
        piece, again = self._lines.new()
        lines: list[dict[str, Any]] = []
        while piece:
            lines += [line for line in map(decoded, piece.splitlines()) if line is not None]
            piece, is_anew = self._lines.new()
            # Ranks that resume write the file again, without the lines of steps that are trained again.
            lines, again = [] if is_anew else lines, again or is_anew
        events = self._events.read()
        for event in events[self._num_events :]:
            for tracker, _, _ in trackers.values():
                pass_on(event, tracker)
        self._num_events = len(events)
        for name, (tracker, delivered, run_id) in trackers.items():
            if again:
                delivered.starts_again()
            new = [line for line in lines if delivered.takes(line)]
            for line in new:
                tracker.log(line["step"], line.get("time") or time.time(), values_of(line))
            if new:
                self._remember(name, run_id, delivered)

    def _remember(self, name: str, run_id: str, delivered: Delivered) -> None:
        known = read_json(self._memory)
        known[name] = {"id": run_id, "step": delivered.step, "lines": list(delivered.lines.elements())}
        with suppress(OSError):
            write_private(self._memory, json.dumps(known) + "\n")


def start_tracking(request: LaunchRequest, console: Console) -> Tracking | None:
    """Pass what a run logs on to its trackers; None where it has none, and on nodes other than the one with rank 0."""
    if not request.output.trackers or request.numbers.start:
        return None
    folder = RunFolder(request.output.run_folder)
    # A run that saves its states has a folder for all of its starts.
    memory = folder.path if request.saving is None else Path(request.saving.folder).parent
    config = {"script": request.title, "args": list(request.entry.args), "ranks": request.world_size}
    course = request.computation.course
    config |= {PARENT: course.parent.text} if course.parent is not None else {}
    config |= {"skipped_steps": str(course.skipped)} if course.skipped else {}
    if "tensorboard" in request.output.trackers:
        console.line(Line("track", f"tensorboard --logdir {shlex.quote(str(memory.parent))}"))
    return Tracking(
        request.output.trackers,
        folder,
        memory=memory,
        name=request.output.run_folder.name,
        config=config,
        say=lambda sentence: console.line(Line("warning", sentence)),
    )
