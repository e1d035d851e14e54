"""Who looks at a run: what its settings want recorded, measured, made again or traced.

Runs in: the main thread of each rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from samebits.protocol.environment import MEASURE, RankEnvironment
from samebits.protocol.journal.spans import spans
from samebits.protocol.recording import REPLAY
from samebits.protocol.run_folder import RunFolder
from samebits.rank.position.observers import Observer
from samebits.rank.position.run_state import Purpose
from samebits.rank.position.step_timer import StepTimer
from samebits.rank.position.trace import Trace
from samebits.rank.recording.calm import calm
from samebits.rank.recording.meter import Meter
from samebits.rank.recording.recorder import Recorder
from samebits.rank.recording.recording import Recording
from samebits.rank.recording.replayed import Replayed
from samebits.rank.recording.run_record import make_run_record


def make_observers(
    environment: RankEnvironment,
    recorder: Recorder | None,
    step_timer: StepTimer,
    device: torch.device,
    why_not_exact: str,
) -> Sequence[Observer]:
    """Those that the settings want. Raises `UsageError` for a record of bits that do not come again."""
    settings, rank = environment.settings, environment.position.rank
    if settings is None:
        return ()
    wanted, folder, found = settings.evidence, RunFolder(settings.run_folder), list[Observer]()
    if recorder is not None:
        found.append(Recording(recorder))
    if MEASURE in wanted:
        found.append(Meter(folder, rank, wanted[MEASURE], step_timer, device))
    # Of a replay that is audited, or of `run --record`.
    told: Mapping[str, Any] = wanted.get(REPLAY, {}).get("record", {}) if wanted else settings.record
    if (record := make_run_record(told, folder, rank, why_not_exact)) is not None:
        found.append(record)
    if REPLAY in wanted:
        found.append(Replayed(folder, rank, wanted[REPLAY]))
    return found


def purpose_of(environment: RankEnvironment, recorder: Recorder | None) -> Purpose:
    """What the run is for."""
    wanted: Mapping[str, Any] = environment.settings.evidence if environment.settings else {}
    if recorder is None:
        return Purpose(measures=MEASURE in wanted, replays=REPLAY in wanted)
    return Purpose(records=True, is_plain=recorder.plain, stops_after_saving=bool(recorder.stops))


def make_recorder(environment: RankEnvironment, folder: RunFolder | None) -> Recorder | None:
    wanted: Mapping[str, object] = environment.settings.evidence if environment.settings else {}
    if not wanted or folder is None or MEASURE in wanted or REPLAY in wanted:
        return None
    recorder = Recorder(folder, environment.position.rank, wanted)
    if recorder.plain:
        calm()
    return recorder


def trace_steps(environment: RankEnvironment, folder: RunFolder | None, step_timer: StepTimer) -> None:
    """Let the step timer write the trace that the command line wants, and a torch.profiler of the script show its ranges."""
    spans.profiler = torch.autograd.profiler
    rank, settings = environment.position.rank, environment.settings
    if folder is not None and settings is not None and settings.trace_steps:
        # Ranks that start again leave what those before them have recorded.
        path = folder.traces / f"rank-{rank:05d}-{os.getpid()}.json"
        step_timer.take_trace(Trace(path, rank, settings.trace_steps))
