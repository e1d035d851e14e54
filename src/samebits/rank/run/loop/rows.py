"""What ranks report to each other in the frame of a pass, by name, and what each does with it: no exchange of its own is needed.

    lanes      what lanes logged and added to tallies          save       the signal because of which the run is to save and end
    bits       see `rank.checks.replicas`                      snapshot   that a snapshot is due
    looks      what a rank has found at its script             counted    that lanes keep their losses until all counts are known
    fetched    digests of what lanes were given, for a record

A row arrives as a list by rank. Bits are compared before a signal is heard: a run does not save what is damaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samebits.protocol.layout.lane_tree import tree_sum
from samebits.rank.checks.labels import share_looks
from samebits.rank.checks.replicas import BITS, receive_bits, report_bits
from samebits.rank.position.run_state import RunState
from samebits.rank.run.loop.per_lane import share_values

LANES, LOOKS, COUNTED, FETCHED = "lanes", "looks", "counted", "fetched"
ByLane = dict[int, tuple[dict[str, Any], list[Any]]]
"""By lane, in their order: what it logged, and what it added to tallies."""


def report(run: RunState, number: int) -> dict[str, Any]:
    """The rows of this rank at the end of a pass, counted from 1 in its step; 0: of a look at what it will be."""
    state = run.loop_state
    logs, state.open_pass.lane_logs = state.open_pass.lane_logs, {}
    sums = state.tallies.take_new()
    rows = run.components.states.report()
    if logs or sums:
        rows[LANES] = {str(lane): [logs.get(lane, {}), sums.get(lane, [])] for lane in {*logs, *sums}}
    if not state.looks.is_shared and (found := state.looks.found()):
        rows[LOOKS] = found
    if state.open_pass.fetched:
        rows[FETCHED], state.open_pass.fetched = state.open_pass.fetched, []
    if state.open_pass.counted:
        rows[COUNTED] = True
    elif number and (bits := report_bits(run, is_first=number == 1)):
        rows[BITS] = bits
    return rows


def receive(run: RunState, rows: Mapping[str, Sequence[Any]]) -> ByLane:
    """Take what all ranks reported; returns what their lanes logged. Raises `RanksDiffer`."""
    state = run.loop_state
    run.components.checks.end_pass()
    receive_bits(run, rows.get(BITS, ()))
    run.components.states.hear(rows)
    state.open_pass.is_counted = COUNTED in rows
    for one in rows.get(FETCHED, ()):
        state.open_pass.all_fetched += one or []
    if not state.looks.is_shared:
        share_looks(run, [found or [] for found in rows.get(LOOKS, ())])
    lanes: ByLane = {}
    if LANES in rows:
        of_ranks = [one for one in rows[LANES] if one]
        lanes = dict(sorted((int(lane), said) for one in of_ranks for lane, said in one.items()))
    state.tallies.receive(lanes)
    if state.prepared.per_lane:
        share_values(run)
    return lanes


def log_of_lanes(run: RunState, step: int, lanes: ByLane) -> None:
    """Write what the lanes logged."""
    if lanes and any(logs for logs, _ in lanes.values()):
        means = _means({lane: logs for lane, (logs, _) in lanes.items()}, run.config.placement.num_lanes)
        run.components.metrics.write(means)
        for logged in run.components.observers.logged:
            logged(step, means)


def _means(lanes: dict[int, dict[str, tuple[float, float]]], num_lanes: int) -> dict[str, float]:
    """The values that lanes logged, each a (weighted sum, weight), as global means in the tree's order."""
    names = sorted({name for values in lanes.values() for name in values})
    means = {}
    for name in names:
        pairs = [lanes.get(lane, {}).get(name, (0.0, 0.0)) for lane in range(num_lanes)]
        weight = tree_sum([pair[1] for pair in pairs])
        means[name] = tree_sum([pair[0] for pair in pairs]) / weight if weight else float("nan")
    return means
