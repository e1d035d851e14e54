"""What many nodes cost on paper is what the real log costs, and can be computed for 10,000 of them."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.nodes.log import RunLog
from lockstep.nodes.record import NodeRecord
from lockstep.nodes.scale import (
    LISTENS_BYTES,
    NODE_BYTES,
    REACHED_BYTES,
    Limits,
    Shape,
    added,
    breaks,
    control,
    largest_world,
    sent_for_a_sum,
    tried,
)
from lockstep.nodes.view import RunView

SHAPES = st.builds(Shape, st.integers(2, 10_000), st.integers(1, 16), st.integers(100, 2_000))


class CountingStore:
    """A store in this process that counts what is asked of it."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        self.sets = self.reads = 0

    def get(self, key: str) -> bytes:
        self.reads += 1
        return self.keys[key]

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self.sets += 1
        assert expected == ""
        return self.keys.setdefault(key, desired.encode())

    def wait(self, keys: list[str], timeout: dt.timedelta) -> None:
        self.reads += 1
        assert all(key in self.keys for key in keys)


def record(number: int) -> NodeRecord:
    return NodeRecord(f"{number:016x}", f"host{number}", number, number == 0, 2, 10_000, 8, 1, {"torch": "2.13.0"})


def one_round(nodes: int) -> tuple[CountingStore, int, list[RunView]]:
    """The real log and the real view of every node over one round; also the bytes of the roster."""
    store = CountingStore()
    logs, names = (
        [RunLog(store, str(number)) for number in range(nodes)],
        [record(number).node for number in range(nodes)],
    )

    def wave(what: Callable[[int], dict[str, Any]]) -> int:
        """All nodes have read all, and add something at once; returns its bytes."""
        behind, entries = len(store.keys), [what(number) for number in range(nodes)]
        for log, entry in zip(logs, entries, strict=True):
            log.add(entry, behind)
        return max(len(json.dumps(entry)) for entry in entries)

    def alone(entry: dict[str, Any]) -> int:
        logs[0].add(entry, len(store.keys))
        return len(json.dumps(entry))

    wave(lambda number: {"kind": "asks", "record": record(number).encode()})
    asked = alone({"kind": "preflight", "number": 0, "nodes": names})
    own = {"address": "10.100.100.100", "port": 50_000, "token": 16 * "a", "why": ""}
    listens = wave(lambda number: {"kind": "listens", "number": 0, "node": names[number], **own})
    reached = wave(lambda number: {"kind": "reached", "number": 0, "node": names[number], "not": {}, "clock_s": 0.0001})
    assert asked <= nodes * NODE_BYTES + 60 and listens <= LISTENS_BYTES and reached <= REACHED_BYTES
    members = [[number, record(number).encode()] for number in range(nodes)]
    roster = {"kind": "roster", "round": 0, "lanes": None, "threads": 1, "members": members}
    alone(roster)
    wave(lambda number: {"kind": "ended", "round": 0, "node": names[number], "told": {"exit_code": 0}})
    alone({"kind": "decision", "round": 0, "node": names[0], "decided": {"again": False}})
    views = []
    for _ in range(nodes):
        view, log = RunView(), RunLog(store)
        for _ in range(control(Shape(nodes)).entries):
            view.take(log.next(dt.timedelta(seconds=1)))
        views.append(view)
    return store, len(json.dumps(roster)), views


@pytest.mark.parametrize("nodes", [2, 3, 8, 40])
def test_the_log_costs_what_the_arithmetic_says(nodes: int) -> None:
    store, roster_bytes, views = one_round(nodes)
    each = len(json.dumps(record(0).encode()))
    on_paper = control(Shape(nodes, record_bytes=each))
    assert len(store.keys) == on_paper.entries
    assert store.sets == on_paper.taken_before == added(nodes) + added(nodes, preflight=True)
    assert store.reads == nodes * on_paper.read_by_each == on_paper.read_by_all
    assert on_paper.roster_bytes == pytest.approx(roster_bytes, rel=0.3)
    assert all(view.is_over() and view.decision == {"again": False} for view in views), "every node has read all of it"


@given(SHAPES, st.integers(1, 100))
def test_nothing_becomes_less_with_more_nodes(shape: Shape, more: int) -> None:
    fewer, many = vars(control(shape)), vars(control(replace(shape, nodes=shape.nodes + more)))
    assert all(many[name] > fewer[name] for name in fewer)


@given(st.integers(2, 10_000), st.integers(1, 8))
def test_bytes_on_a_link_do_not_grow_with_the_nodes(nodes: int, subtrees: int) -> None:
    assert sent_for_a_sum(nodes, 1.0, subtrees) < subtrees + 1
    assert sent_for_a_sum(nodes, 1.0) == pytest.approx(2 * (nodes - 1) / nodes)


def test_ten_thousand_nodes_break_in_the_order_that_the_design_page_tells() -> None:
    page = (Path(__file__).parents[3] / "docs/design/0028-scale-on-paper.md").read_text()
    limits = Limits(requests_per_s=11_500)
    found = breaks(limits)
    assert [one.what.split(" ")[1] for one in found] == ["ranks", "preflight", "log", "roster", "beats", "first"]
    (usual,) = (one for one in breaks(replace(limits, open_files=1024)) if "files" in one.what)
    told = [
        int(number.replace(",", ""))
        for number in re.findall(r"^\| ([\d,]+) \| (?:the|a r|beats|even)", page, re.MULTILINE)
    ]
    assert told == [usual.nodes, *(one.nodes for one in found)]
    assert f"the ranks ({largest_world(limits)}) do not meet" in page
    for nodes in (2, 8, 32, 128, 1000, 10_000):
        costs = control(Shape(nodes))
        (line,) = re.findall(rf"^\| {nodes:,} \| .*$", page, re.MULTILINE)
        assert f"{costs.files:,} | {sent_for_a_sum(nodes, 1.0):.2f} |" in line
        assert f" {costs.beats_per_s:,.0f} /s " in line
        assert f"{tried(nodes):,} |" in line
        assert nodes > 128 or f"| {costs.taken_before:,} | {costs.read_by_all:,} |" in line


@given(st.floats(100, 1e6), st.integers(1, 16))
def test_what_breaks_works_with_one_node_less(requests_per_s: float, ranks: int) -> None:
    limits = Limits(requests_per_s)
    for one in breaks(limits, ranks):
        if one.what.startswith("the ranks"):
            enough = requests_per_s * limits.patience_s
            assert control(Shape(one.nodes, ranks)).met > enough >= control(Shape(one.nodes - 1, ranks)).met
