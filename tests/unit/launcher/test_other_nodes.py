"""What a launcher makes of what other nodes tell: pure but for the clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from samebits.launcher.diagnosis.scene import RankScene
from samebits.launcher.diagnosis.stalls import Holdup, Judgement, Standing
from samebits.launcher.diagnosis.wait_reports import WaitReporter
from samebits.launcher.nodes.cluster import Cluster
from samebits.launcher.nodes.roster import NodeRecord
from samebits.launcher.supervise.all_nodes import AllGauges, OtherNodes
from samebits.launcher.supervise.stalls import NEWS_S, Stalls
from samebits.protocol.journal.gauges import Gauges, listed, unlist
from samebits.protocol.records import plain


def cluster(own: str = "a") -> tuple[Cluster, list[dict[str, Any]]]:
    """Node a with ranks 0 and 1, node b with rank 2; this is `own`. What it tells."""
    message: list[dict[str, Any]] = []
    records = {
        name: NodeRecord(name, f"host-{name}", None, name == "a", 2, 2, ranks, 1)
        for name, ranks in (("a", 2), ("b", 1))
    }
    star = cast("Any", SimpleNamespace(loop=None, is_unanswered=lambda *_: False))
    made = Cluster(records[own], star, "lo", 1.0, lambda *_: None, lambda _: None)
    made.notices.publish = message.append
    for record in records.values():
        made.view.take({"kind": "asks", "record": plain(record)})
    roster = [[number, name] for number, name in enumerate(records)]
    made.view.take({"kind": "roster", "round": 0, "threads": 1, "lanes": None, "members": roster})
    return made, message


def test_the_gauges_are_this_nodes_until_all_others_have_told_theirs() -> None:
    found, message = cluster()
    gauges, own = AllGauges(found), (Gauges(step=3), Gauges(step=4))
    assert gauges.of(own) == own
    found.notices.gauges["b"] = [listed(Gauges(step=5, loss=1.5))]
    assert gauges.of(own) == (*own, Gauges(step=5, loss=1.5))
    gauges.publish(own, 10.0)
    gauges.publish(own, 10.5)
    assert [one["kind"] for one in message] == ["gauges"]
    gauges.publish(own, 11.1)
    assert len(message) == 2
    assert AllGauges(None).of(own) == own
    assert unlist(listed(own[0])).step == 3


def test_ranks_of_other_nodes_are_seen_as_these_told_last() -> None:
    found, message = cluster("b")
    nodes = OtherNodes(found, WaitReporter())
    assert nodes.scenes().keys() == {0, 1}
    assert nodes.homes == {0: "node 0 (host host-a)", 1: "node 0 (host host-a)", 2: "node 1 (host host-b)"}
    wait = {"rank": 1, "lasts_s": 3.0, "behind": [[2, 2]], "what": "a barrier", "moves": None}
    found.view.take({"kind": "waits", "round": 0, "node": "a", "report": {"waits": [wait]}})
    seen = nodes.scenes()[1].wait
    assert seen is not None
    assert (seen.behind, seen.lasts_s >= 3.0) == ({2}, True)
    nodes.publish(nodes.scenes() | {2: RankScene(2, cast("Any", None), None, None)})
    assert not message  # rank 2 does not wait
    found.view.take({"kind": "waits", "round": 0, "node": "a", "report": {}})
    assert nodes.scenes()[1].wait is None


def test_a_rank_that_went_on_is_not_called_slow_because_the_news_take_a_moment() -> None:
    stalls = Stalls(*[cast("Any", SimpleNamespace(numbers=range(2, 4)))] * 6)
    far = Judgement(Standing.SLOW, Holdup(frozenset({2}), frozenset({0, 1}), 9.0), frozenset({2}))
    near = Judgement(Standing.SLOW, Holdup(frozenset({2}), frozenset({0, 3}), 9.0), frozenset({2}))
    stuck = Judgement(Standing.STALLED, Holdup(frozenset({2}), frozenset({0}), 9.0), frozenset({2}))
    assert stalls._current([far], 10.0) == []
    assert stalls._current([far], 10.0 + NEWS_S) == [far]
    assert stalls._current([], 12.0) == []
    assert stalls._current([far], 13.0) == []
    assert stalls._current([near], 13.1) == [near]
    assert stalls._current([stuck], 13.2) == [stuck]


def test_nobody_is_called_stalled_while_nodes_may_not_reach_each_other() -> None:
    found, _ = cluster()
    stuck = Judgement(Standing.STALLED, Holdup(frozenset({1}), frozenset({0}), 9.0), frozenset({1}))
    scenes = SimpleNamespace(judge=lambda *_, **__: ({}, [stuck]))
    request = SimpleNamespace(numbers=range(2), recovery=SimpleNamespace(stall_after_s=None))
    stalls = Stalls(
        *[cast("Any", one) for one in (scenes, None, None, request, None, None)], OtherNodes(found, WaitReporter())
    )
    printed: list[Judgement] = []
    stalls._say = lambda judgement, *_: bool(printed.append(judgement))  # type: ignore[method-assign]
    path = {"kind": "path", "round": 0, "node": "a", "to": "b"}
    found.view.take({**path, "path": "doubtful"})
    stalls.look({})
    assert not printed
    found.view.take({**path, "path": "works"})
    stalls.look({})
    assert printed == [stuck]
