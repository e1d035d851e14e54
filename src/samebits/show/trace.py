"""`trace.json` of a run: what its ranks recorded for `--trace`, in the form that Perfetto and chrome://tracing open.

A process for each rank; its first track has the phases (data, compute with the lane, exchange, optimizer, script), the
others what buckets of gradients, waits and threads did. Source of the form: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from samebits.protocol.events import finite
from samebits.protocol.run_folder import RunFolder, read_json, write_private

COLOURS = {"data": "yellow", "compute": "good", "exchange": "terrible", "optimizer": "thread_state_running"}


def write_trace(folder: RunFolder) -> Path | None:
    """Write the trace of a run that has ended; None where its ranks left nothing."""
    parts = [told for path in sorted(folder.traces.glob("rank-*.json")) if (told := read_json(path))]
    if not parts:
        return None
    write_private(folder.trace, json.dumps({"traceEvents": list(trace_events(parts)), "displayTimeUnit": "ms"}))
    return folder.trace


def trace_events(parts: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events of all ranks; what is none is left out."""
    for part in parts:
        rank = part.get("rank")
        if type(rank) is not int:
            continue
        yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}}
        yield {"ph": "M", "pid": rank, "tid": 0, "name": "thread_name", "args": {"name": "phases"}}
        for phase, operation, begin, end in _whole(part.get("phases")):
            shown = _event(rank, 0, operation if phase == "compute" and operation else phase, begin, end)
            yield {**shown, "cat": phase, "args": {"operation": operation}} | (
                {"cname": COLOURS[phase]} if phase in COLOURS else {}
            )
        tracks: dict[str, int] = {}
        for track, name, begin, end in _whole(part.get("spans")):
            if track not in tracks:
                tracks[track] = len(tracks) + 1
                named = {"name": track}
                yield {"ph": "M", "pid": rank, "tid": tracks[track], "name": "thread_name", "args": named}
            yield {**_event(rank, tracks[track], name, begin, end), "cat": track}


def _event(rank: int, track: int, name: str, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "pid": rank, "tid": track, "name": name, "ts": begin / 1e3, "dur": max(end - begin, 0) / 1e3}


def _whole(rows: object) -> Iterator[tuple[str, str, float, float]]:
    for row in rows if isinstance(rows, list) else ():
        match row:
            case [str(first), str(second), begin, end] if math.isfinite(finite(begin)) and math.isfinite(finite(end)):
                yield first, second, float(begin), float(end)
