"""`trace.json` of a run: what its ranks recorded for `--trace`, in the form that Perfetto and chrome://tracing open.

A process for each rank; its first track has the steps, and in them the phases (data, compute with the lane, exchange,
optimizer, script), the others what buckets of gradients, waits and threads did. Kills and restarts are lines through all
of them. Source of the form: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from samebits.machine.visible import visible
from samebits.protocol.events import Event, Kind, events_in, finite, of_kind
from samebits.protocol.run_folder import RunFolder, read_json, write_private

COLOURS = {"data": "yellow", "compute": "good", "exchange": "terrible", "optimizer": "thread_state_running"}


def write_trace(folder: RunFolder) -> Path | None:
    """Write the trace of a run that has ended; None where its ranks left nothing."""
    parts = [told for path in sorted(folder.traces.glob("rank-*.json")) if (told := read_json(path))]
    if not parts:
        return None
    shown = [*trace_events(parts), *instants(events_in(folder.events), parts)]
    write_private(folder.trace, json.dumps({"traceEvents": shown, "displayTimeUnit": "ms"}))
    return folder.trace


def trace_events(parts: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events of all ranks; what is none is left out."""
    tracks: dict[tuple[int, str], int] = {}
    for part in parts:
        rank = part.get("rank")
        if type(rank) is not int:
            continue
        yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}}
        yield {"ph": "M", "pid": rank, "tid": 0, "name": "thread_name", "args": {"name": "phases"}}
        # What is around others comes before them.
        for step, epoch, samples, begin, end in _whole(part.get("steps"), int, int, int):
            told = {"step": step, "epoch": epoch, "samples": samples}
            yield {**_event(rank, 0, f"step {step}", begin, end), "cat": "step", "args": told}
        for phase, operation, begin, end in _whole(part.get("phases"), str, str):
            shown = _event(rank, 0, operation if phase == "compute" and operation else phase, begin, end)
            yield {**shown, "cat": phase, "args": {"operation": operation}} | (
                {"cname": COLOURS[phase]} if phase in COLOURS else {}
            )
        for track, name, begin, end in _whole(part.get("spans"), str, str):
            if (rank, track) not in tracks:
                tracks[rank, track] = number = 1 + sum(one == rank for one, _ in tracks)
                yield {"ph": "M", "pid": rank, "tid": number, "name": "thread_name", "args": {"name": track}}
            yield {**_event(rank, tracks[rank, track], name, begin, end), "cat": track}


def instants(events: Iterable[Event], parts: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Kills and restarts, as lines through all tracks; those behind the end of the trace are left out."""
    # The ranks of a node have one clock, the events that of the wall.
    offsets = [one for part in parts if math.isfinite(one := finite(part.get("since_1970_ns")))]
    last = max((end for part in parts for *_, end in _whole(part.get("phases"), str, str)), default=0.0)
    for event in of_kind(events, Kind.KILL, Kind.RESTART) if offsets else ():
        if (at := event.time_s * 1e9 - offsets[-1]) <= last:
            rank = event.fields.get("rank")
            rank = rank if type(rank) is int else 0
            name = f"rank {rank} killed" if event.kind is Kind.KILL else "restart"
            told = {"step": event.step} | ({"said": visible(event.said)} if event.said else {})
            yield {"ph": "i", "s": "g", "pid": rank, "tid": 0, "name": name, "ts": at / 1e3, "args": told}


def _event(rank: int, track: int, name: str, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "pid": rank, "tid": track, "name": name, "ts": begin / 1e3, "dur": max(end - begin, 0) / 1e3}


def _whole(rows: object, *kinds: type) -> Iterator[tuple[Any, ...]]:
    """Rows of values of these kinds, and a begin and an end."""
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and [type(one) for one in row[:-2]] == list(kinds):
            begin, end = map(finite, row[-2:])
            if math.isfinite(begin) and math.isfinite(end):
                yield *row[:-2], begin, end
