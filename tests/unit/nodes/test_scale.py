"""What many nodes cost on paper is what the real log costs, and can be computed for 10,000 of them."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.journal.gauges import Gauges, listed
from lockstep.launch.supervise.all_nodes import Told
from lockstep.nodes.log import RunLog
from lockstep.nodes.order import LogOrder, pause_s
from lockstep.nodes.record import NodeRecord
from lockstep.nodes.scale import (
    ADDS,
    GAUGES_BYTES,
    NODE_BYTES,
    PACKED_BYTES,
    Limits,
    Shape,
    breaks,
    control,
    sent_for_a_sum,
)
from lockstep.nodes.view import RunView

SHAPES = st.builds(Shape, st.integers(2, 10_000), st.integers(1, 16), st.floats(0.0, 10.0))


class CountingStore:
    """A store in this process that counts what goes over the wire: a get waits for its key, and then takes it."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        self.told: deque[str] = deque()
        self.adds = self.reads = 0

    def set_timeout(self, timeout: dt.timedelta) -> None:
        assert timeout

    def set(self, key: str, value: bytes) -> None:
        assert key not in self.keys
        self.keys[key] = value

    def get(self, key: str) -> bytes:
        self.reads += 2
        return self.keys[key]

    def queue_push(self, key: str, value: str) -> None:
        self.adds += 1
        self.told.append(value)

    def queue_pop(self, key: str, block: bool) -> bytes:
        assert not block
        return self.told.popleft().encode()

    def check(self, keys: list[str]) -> bool:
        self.adds += 1
        return bool(self.told)

    def wait(self, keys: list[str], timeout: dt.timedelta) -> None:
        assert self.told


class FirstNodesStore:
    """What the first node asks without the gate: not counted."""

    def __init__(self, store: CountingStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.told)


def record(number: int) -> NodeRecord:
    same = {f"their version of part {part}": f"2.13.{part}" for part in range(15)}
    name = f"{random.Random(number).getrandbits(64):016x}"
    return NodeRecord(name, f"host{number}", number, number == 0, 2, 10_000, 8, 1, same)


class OneRound:
    """The real log, its real order, and the real view of every node over one round; a clock that the test moves."""

    def __init__(self, nodes: int, spread_s: float) -> None:
        self.store, self.nodes, self.spread_s = CountingStore(), nodes, spread_s
        self.logs = [RunLog(cast("Any", self.store)) for _ in range(nodes)]
        self.now_s = 1.0
        self.order = LogOrder(
            cast("Any", FirstNodesStore(self.store)), lambda: nodes - 1, lambda: self.now_s, self.sleep
        )
        self.first, self.views = RunView(), [RunView() for _ in range(nodes - 1)]
        self.sizes: dict[str, int] = {}
        """Of a wave's batches, by its kind."""

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def hear(self) -> None:
        before = set(self.store.keys)
        told = self.order.next(dt.timedelta(seconds=1))
        for entry in told:
            self.first.take(entry)
        kind = told[0]["kind"]
        self.sizes[kind] = self.sizes.get(kind, 0) + sum(
            len(self.store.keys[key]) for key in set(self.store.keys) - before
        )

    def wave(self, what: Callable[[int], dict[str, Any]]) -> None:
        """All nodes add something, one after the other; the order takes what there is when it may."""
        began, not_before = self.now_s, self.now_s
        for number, log in enumerate(self.logs):
            self.now_s = max(self.now_s, began + self.spread_s * number / self.nodes)
            log.add(what(number))
            if self.spread_s and self.now_s >= not_before:
                self.hear()
                not_before = self.now_s + pause_s(self.nodes - 1)
        if self.store.told:
            self.hear()

    def alone(self, entry: dict[str, Any]) -> int:
        self.logs[0].add(entry)
        self.hear()
        return len(json.dumps(entry))

    def ended(self, dice: random.Random) -> dict[str, Any]:
        """How 8 ranks ended well after 1,000 steps."""
        times = [[dice.randrange(10**9, 10**11) for _ in range(5)] for _ in range(8)]
        gauges = [listed(Gauges(4, 4, 1000, 250, 250, 64_000, *five, 1000, dice.random())) for five in times]
        return Told(0, 0, True, True, None, None, "", 1000, tuple(map(tuple, gauges))).encode()

    def run(self) -> int:
        """Returns the bytes of the roster."""
        names = [record(number).node for number in range(self.nodes)]
        token, of_all = random.Random(1), {"number": 0}
        listens = {"kind": "listens", **of_all, "port": 50_000, "why": ""}
        self.wave(lambda number: {"kind": "asks", "record": record(number).encode()})
        asked = self.alone({"kind": "preflight", **of_all, "nodes": names})
        assert asked <= self.nodes * NODE_BYTES + 60
        self.wave(
            lambda number: {
                **listens,
                "node": names[number],
                "address": f"10.100.{number // 256}.{number % 256}",
                "token": f"{token.getrandbits(64):016x}",
            }
        )
        self.wave(
            lambda number: {
                "kind": "reached",
                **of_all,
                "node": names[number],
                "not": {},
                "clock_s": token.random() / 1e3,
            }
        )
        members = [[number, name] for number, name in enumerate(names)]
        roster = self.alone({"kind": "roster", "round": 0, "lanes": None, "threads": 1, "members": members})
        self.wave(lambda number: {"kind": "ended", "round": 0, "node": names[number], "told": self.ended(token)})
        self.alone({"kind": "decision", "round": 0, "node": names[0], "decided": {"again": False}})
        for view, log in zip(self.views, self.logs[1:], strict=True):
            for _ in range(control(Shape(self.nodes)).entries):
                view.take(log.next(dt.timedelta(seconds=1)))
        return roster


@pytest.mark.parametrize("nodes", [2, 3, 8, 40])
def test_the_log_costs_what_the_arithmetic_says(nodes: int) -> None:
    real, on_paper = OneRound(nodes, 0.0), control(Shape(nodes, spread_s=0.0))
    roster = real.run()
    assert real.store.adds == on_paper.added == ADDS * on_paper.entries
    assert len(real.store.keys) == on_paper.batches == 7
    assert real.store.reads == on_paper.read_by_all == 2 * 7 * (nodes - 1)
    assert on_paper.roster_bytes - 5 * nodes <= roster <= on_paper.roster_bytes + 100
    assert all(view == real.first for view in real.views), "every node knows the same"
    assert real.first.is_over() and real.first.decision == {"again": False} and len(real.first.members) == nodes


def test_what_a_node_tells_is_as_short_among_many_as_the_arithmetic_says() -> None:
    real = OneRound(40, 0.0)
    real.run()
    waves = [real.sizes[kind] / 40 for kind in ("asks", "listens", "reached")]
    assert PACKED_BYTES / 2 < max(waves) <= PACKED_BYTES
    assert GAUGES_BYTES / 2 < (real.sizes["ended"] / 40 - PACKED_BYTES) / 8 <= GAUGES_BYTES


@pytest.mark.parametrize("nodes", [8, 40, 120])
def test_nodes_that_answer_one_after_the_other_are_read_in_no_more_batches_than_there_are_pauses(nodes: int) -> None:
    real, on_paper = OneRound(nodes, 0.1), control(Shape(nodes, spread_s=0.1))
    real.run()
    assert on_paper.batches / 2 < len(real.store.keys) <= on_paper.batches + 4
    assert real.store.adds == on_paper.added
    assert real.store.reads == 2 * len(real.store.keys) * (nodes - 1)
    assert nodes < 40 or len(real.store.keys) < on_paper.entries / 2
    assert all(view == real.first for view in real.views)


@given(SHAPES, st.integers(1, 100))
def test_nothing_becomes_less_with_more_nodes(shape: Shape, more: int) -> None:
    fewer, many = vars(control(shape)), vars(control(replace(shape, nodes=shape.nodes + more)))
    assert all(many[name] > fewer[name] for name in fewer if name != "batches")


@given(st.integers(2, 10_000), st.integers(1, 8))
def test_bytes_on_a_link_do_not_grow_with_the_nodes(nodes: int, subtrees: int) -> None:
    assert sent_for_a_sum(nodes, 1.0, subtrees) < subtrees + 1
    assert sent_for_a_sum(nodes, 1.0) == pytest.approx(2 * (nodes - 1) / nodes)


PAGE = Path(__file__).parents[3] / "docs/design/0028-scale-on-paper.md"
LIMITS = Limits(requests_per_s=11_500)
"""The first node's link takes 87 us of a core for a request through gate and TLS (docs/design/0028)."""


def test_what_it_was_before_is_compared_with_what_it_is_now() -> None:
    for line in re.findall(r"^\|(?: [^|]* \|){7}$", PAGE.read_text(), re.MULTILINE)[1:]:
        nodes, _, added, _, read, _, met = (cell.strip().replace(",", "") for cell in line.strip("|").split("|"))
        costs = control(Shape(int(nodes)))
        assert (costs.added, costs.read_by_all, costs.met) == (int(added), int(read), int(met))


def test_ten_thousand_nodes_break_in_the_order_that_the_design_page_tells() -> None:
    found = breaks(LIMITS)
    assert [one.what.split(" ")[1] for one in found] == [
        "ranks",
        "log's",
        "preflight",
        "beats",
        "log",
        "first",
        "roster",
    ]
    (usual,) = (one for one in breaks(replace(LIMITS, open_files=1024)) if "files" in one.what)
    told = re.findall(r"^\| ([\d,]+) \| (?:the|a r|beats|even)", PAGE.read_text(), re.MULTILINE)
    assert [int(number.replace(",", "")) for number in told] == [usual.nodes, *(one.nodes for one in found)]


@given(st.floats(100, 1e6), st.integers(1, 16))
def test_what_breaks_works_with_one_node_less(requests_per_s: float, ranks: int) -> None:
    limits = Limits(requests_per_s, bytes_per_s=1e30)
    for one in breaks(limits, ranks):
        if one.what.startswith("the ranks"):
            enough = requests_per_s * limits.patience_s
            assert control(Shape(one.nodes, ranks)).met > enough >= control(Shape(one.nodes - 1, ranks)).met
