"""Which node's end explains those of the others, and what is decided for all of them, as it goes through the log."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import Any

import pytest

from samebits.launcher.blame import RankEnd, Verdict
from samebits.launcher.nodes.roster import NodeRecord
from samebits.launcher.nodes.view import RunView
from samebits.launcher.recovery import Decision, Loss, Regroup, RestartAll, Stop
from samebits.launcher.supervise.all_nodes import (
    LOST_NODE,
    NodeEnd,
    decode_decision,
    encode_decision,
    newest_whence,
    regrouped,
    verdict_everywhere,
    whole,
)
from samebits.launcher.terminal.report import Whence
from samebits.protocol.journal.failure import Failure, FailureKind
from samebits.protocol.records import plain, restored

WELL = NodeEnd(
    0, 0, joined=True, uses_samebits=True, culprit=None, loss=None, block="", newest_step=20, gauges=((1.0, 2.0),)
)
STOPPED = replace(WELL, exit_code=143)
"""Its ranks were stopped because of another node's."""
INTERRUPTED = replace(WELL, exit_code=130, interrupted_by=signal.SIGINT)


def message(rank: int, kind: FailureKind | None, *, step: int = 7, by: int = 0) -> NodeEnd:
    failure = Failure(rank, kind, "ValueError: no", "...", "/me/train.py", 3, None, 5) if kind else None
    code = 128 + by if by else 1
    return NodeEnd(
        code,
        0,
        joined=True,
        uses_samebits=True,
        culprit=RankEnd(rank, code, by, 9, False, failure),
        loss=Loss(rank, "ended", step),
        block=f"FAILED    rank {rank}",
        newest_step=step,
    )


RAISED, LOST_PEER = message(2, FailureKind.SCRIPT), message(0, FailureKind.PEER)
KILLED = message(3, None, by=signal.SIGKILL)


def view(*ends: NodeEnd | None, fallen: str = "", leaving: str = "", gone: str = "") -> RunView:
    """Nodes a, b, c with two ranks each; None: it told nothing."""
    found = RunView()
    records = [NodeRecord(node, f"host-{node}", None, node == "a", 1, 4, 2, 1) for node in "abc"[: len(ends)]]
    for record in records:
        found.take({"kind": "asks", "record": plain(record)})
    members = [[number, record.node] for number, record in enumerate(records)]
    found.take({"kind": "roster", "round": 0, "lanes": None, "threads": 1, "members": members})
    entries: list[dict[str, Any]] = [{"kind": "leaves", "node": node} for node in leaving]
    entries += [{"kind": "fall", "round": 0, "node": node, "regroups": False, "keeps": True} for node in fallen]
    for record, end in zip(records, ends, strict=True):
        if end is not None:
            through_json = json.loads(json.dumps(plain(end)))
            entries.append({"kind": "ended", "round": 0, "node": record.node, "report": through_json})
    entries += [{"kind": "gone", "node": node} for node in gone]
    for entry in entries:
        found.take(entry)
    return found


@pytest.mark.parametrize("end", [WELL, STOPPED, INTERRUPTED, RAISED, LOST_PEER, KILLED])
def test_what_a_node_tells_survives_json(end: NodeEnd) -> None:
    assert restored(NodeEnd, json.loads(json.dumps(plain(end)))) == end


def test_where_all_ended_well_the_first_node_speaks() -> None:
    found = whole(view(WELL, WELL))
    assert (found.exit_code, found.verdict, found.member.number) == (0, Verdict(0, None), 0)
    assert not found.is_node
    assert not found.is_failure


@pytest.mark.parametrize("failure", [RAISED, KILLED])
@pytest.mark.parametrize("fallen", ["ab", "ba", ""])
def test_a_failure_explains_a_lost_peer_whoever_was_in_the_log_first(failure: NodeEnd, fallen: str) -> None:
    found = whole(view(LOST_PEER, failure, fallen=fallen))
    assert (found.end, found.member.number, found.is_failure) == (failure, 1, True)


def test_a_failure_explains_ranks_that_were_stopped() -> None:
    found = whole(view(STOPPED, KILLED, STOPPED, fallen="bac"))
    assert found.end == KILLED
    assert found.exit_code == 128 + signal.SIGKILL


def test_of_two_failures_the_one_that_was_in_the_log_first_counts() -> None:
    assert whole(view(RAISED, KILLED, fallen="ba")).end == KILLED
    assert whole(view(RAISED, KILLED, fallen="ab")).end == RAISED
    assert whole(view(RAISED, KILLED)).end == RAISED


def test_where_ranks_only_lost_peers_the_first_in_the_log_explains_it_and_nobody_failed() -> None:
    found = whole(view(STOPPED, LOST_PEER, replace(LOST_PEER, block="later"), fallen="bc"))
    assert (found.end, found.is_failure) == (LOST_PEER, False)


def test_ranks_that_were_stopped_come_before_those_that_ended_well() -> None:
    found = whole(view(WELL, STOPPED))
    assert (found.exit_code, found.is_failure) == (143, False)


def test_a_persons_signal_comes_before_failures_that_follow_from_it() -> None:
    found = whole(view(LOST_PEER, INTERRUPTED, RAISED, fallen="ac"))
    assert (found.end, found.exit_code, found.is_failure) == (INTERRUPTED, 130, True)


def test_a_lost_node_explains_everything() -> None:
    found = whole(view(LOST_PEER, None, KILLED, fallen="ac", gone="b"))
    assert found.is_node
    assert found.member.text == "node 1 (host host-b)"
    assert found.end.block.startswith(f"FAILED    node 1 (host host-b): {LOST_NODE}\n  help  ")
    assert found.end.loss == Loss(2, "was lost", 7, who="node 1 (host host-b)")
    assert found.end.loss.sentence == "node 1 (host host-b) was lost in step 7 (6 done)"
    assert (found.exit_code, found.end.uses_samebits, found.end.newest_step) == (1, True, 7)


def test_of_two_lost_nodes_the_one_with_the_lower_number_is_named() -> None:
    found = whole(view(STOPPED, None, None, gone="cb"))
    assert (found.member.number, found.end.newest_step) == (1, 20)


def test_a_node_that_is_gone_after_it_told_its_end_is_not_lost() -> None:
    found = whole(view(WELL, WELL, gone="b"))
    assert not found.is_node
    assert found.exit_code == 0


def test_how_a_leaving_node_ended_explains_nothing() -> None:
    found = whole(view(STOPPED, INTERRUPTED, leaving="b", fallen="a"))
    assert (found.end, found.is_failure) == (STOPPED, False)
    found = whole(view(KILLED, INTERRUPTED, leaving="b", fallen="a"))
    assert (found.end, found.is_failure) == (KILLED, True)


def test_a_leaving_node_that_is_gone_too_early_is_lost() -> None:
    assert whole(view(STOPPED, None, leaving="b", gone="b")).is_node


@pytest.mark.parametrize(
    "decision",
    [
        Stop(),
        Stop("rank 2 was killed again", is_script=True),
        Regroup("host c joins"),
        RestartAll(Loss(2, "was killed", 7, "train.py:3", who="node 1 (host b)"), 2, 3, 0),
    ],
)
@pytest.mark.parametrize("end", [WELL, RAISED])
def test_a_decision_survives_the_log(decision: Decision, end: NodeEnd) -> None:
    whence = Whence(20, in_memory=True, why="because")
    encoded = json.loads(json.dumps(encode_decision(decision, end, whence)))
    assert decode_decision(encoded) == (decision, end, whence)


def test_every_node_ends_with_the_code_and_the_culprit_of_all() -> None:
    here = Verdict(143, None, stopped=(2, 3))
    assert verdict_everywhere(here, KILLED) == Verdict(137, KILLED.culprit, stopped=(2, 3))


def coming(node: str) -> dict[str, Any]:
    return {"kind": "asks", "record": plain(NodeRecord(node, f"host-{node}", None, False, 1, 4, 2, 1))}


def ended_for_others(*ends: NodeEnd) -> RunView:
    """A round that node a ended because node d came."""
    found = view(*[None] * len(ends))
    found.take(coming("d"))
    found.take({"kind": "fall", "round": 0, "node": "a", "regroups": True, "keeps": False})
    for member, end in zip(found.members, ends, strict=True):
        found.take({"kind": "ended", "round": 0, "node": member.record.node, "report": plain(end)})
    return found


def test_all_start_again_with_a_node_that_comes() -> None:
    found = ended_for_others(STOPPED, LOST_PEER)
    assert regrouped(whole(found), found, continues=True) == Regroup("host host-d joins")


def test_all_start_again_where_the_node_that_came_died_before_that_was_decided() -> None:
    found = ended_for_others(STOPPED, STOPPED)
    found.take({"kind": "gone", "node": "d"})
    assert regrouped(whole(found), found, continues=True) == Regroup("the node that came or left is gone")


def test_a_failure_or_a_good_end_is_not_explained_by_a_node_that_comes() -> None:
    for ends in ((STOPPED, KILLED), (WELL, WELL), (INTERRUPTED, STOPPED)):
        found = ended_for_others(*ends)
        assert regrouped(whole(found), found, continues=True) is None


def test_a_lost_node_stops_the_run_only_where_failures_do() -> None:
    found = view(STOPPED, None, gone="b")
    assert regrouped(whole(found), found, continues=True) == Regroup("node 1 (host host-b) is gone")
    assert regrouped(whole(found), found, continues=False) is None


def test_ranks_go_on_from_the_newest_snapshot_of_any_node() -> None:
    ended = view(replace(WELL, newest_step=20), replace(WELL, newest_step=23), replace(WELL, newest_step=None))
    assert newest_whence(Whence(20, in_memory=True), ended) == Whence(23, in_memory=True)
    assert newest_whence(Whence(), ended) == Whence(23, in_memory=True)
    assert newest_whence(Whence(25), ended) == Whence(25), "on the disk of the first node"
