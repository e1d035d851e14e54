"""What nodes say to each other, and who hears it."""

import pytest

from samebits.launcher.nodes.roster import NodeRecord
from samebits.launcher.nodes.view import Notices, RunView
from samebits.protocol.records import plain


def record(name):
    return NodeRecord(name, f"host-{name}", None, name == "a", 3, 3, 1, 1)


def node(name, members="abc"):
    """One node's sayings, and what it adds to the log, prints, and hears."""
    log, printed, heard = [], [], []
    sayings = Notices(record(name), RunView(), log.append, lambda *line: printed.append(line), heard.append)
    for one in members:
        sayings.view.take({"kind": "asks", "record": plain(record(one))})
    roster = [[number, one] for number, one in enumerate(members)]
    sayings.view.take({"kind": "roster", "round": 0, "threads": 1, "lanes": None, "members": roster})
    return sayings, log, printed, heard


def test_what_one_node_says_is_heard_by_the_others_in_its_round():
    speaker, log, _, _ = node("b")
    speaker.publish_notice("stalled", "rank 1 is asleep", "stalled-in-script", [1])
    for name, hears in (("a", True), ("b", False), ("c", True)):
        listener, _, _, heard = node(name)
        listener.take(log[0])
        assert bool(heard) == hears
    late, _, _, heard = node("d")  # it reads the log of rounds in which it did not take part
    late.take(log[0])
    listener, _, _, heard_later = node("a")
    listener.view.take({"kind": "roster", "round": 1, "threads": 1, "lanes": None, "members": []})
    listener.take(log[0])
    assert not heard
    assert not heard_later


def test_the_first_node_tells_all_but_the_one_that_it_is_about_who_is_silent():
    first, log, printed, _ = node("a")
    first.report_silence({"kind": "silent", "node": "c"})
    first.report_silence({"kind": "heard", "node": "c"})
    assert [text.partition(":")[0] for _, text in printed] == [
        "node 2 (host host-c) has sent nothing for 5 s",
        "node 2 (host host-c) is back",
    ]
    other, _, _, heard = node("b")
    other.take(log[0])
    assert heard[0]["text"] == printed[0][1]
    away, _, _, heard = node("c")
    away.take(log[0])
    assert not heard


def test_another_node_says_only_for_itself_that_the_first_one_is_silent():
    other, log, printed, _ = node("b")
    other.report_silence({"kind": "silent", "node": ""})
    assert printed[0][1].startswith("node 0 (host host-a) has sent nothing")
    assert not log


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (
            "launcher",
            "the launcher of node 1 (host host-b) stands still; if a signal has stopped it, kill -CONT 7 there resumes it",
        ),
        ("nursery", "the nursery of node 1 (host host-b) is stopped by a signal; kill -CONT 7 there resumes it"),
        ("", "the launcher of node 1 (host host-b) has resumed"),
    ],
)
def test_a_launcher_that_is_stopped_is_named_on_the_other_nodes_only(what, expected):
    message = {"kind": "stopped", "node": "b", "what": what, "process": 7}
    for name in "abc":
        sayings, _, printed, _ = node(name)
        sayings.take(message)
        sayings.view.take(message)
        assert [text for _, text in printed] == [expected] * (name != "b")
        assert sayings.view.stopped == ({"b"} if what else set())


def test_at_the_end_of_a_round_stopped_nodes_are_given_up_and_nobody_else():
    stopped = {"kind": "stopped", "node": "b", "what": "launcher", "process": 7}
    first, log, _, _ = node("a")
    assert not first.give_up_stopped()
    first.view.take(stopped)
    assert not first.give_up_stopped()
    assert log == [{"kind": "given up", "node": "b"}]
    first.view.take({"kind": "ended", "round": 0, "node": "b", "report": {}})
    assert not first.give_up_stopped()
    assert len(log) == 1
    other, log, _, _ = node("c")
    other.view.take(stopped)
    assert not other.give_up_stopped()
    other.view.take({**stopped, "node": "a"})
    assert other.give_up_stopped() == "node 0 (host host-a) is stopped by a signal"
    assert not log


def test_waits_and_gauges_count_for_their_round_only():
    speaker, log, _, _ = node("b")
    speaker.publish_of_round("waits", report={"waits": []})
    speaker.publish_of_round("gauges", gauges=[[1.0]])
    first, _, _, _ = node("a")
    for message in log:
        first.take(message)
        first.view.take(message)
    assert first.view.waits == {"b": {"waits": []}}
    assert first.gauges == {"b": [[1.0]]}
    first.view.take({"kind": "roster", "round": 1, "threads": 1, "lanes": None, "members": []})
    first.view.take(log[0])
    assert first.view.waits == {}


def test_a_launcher_whose_machine_answers_is_told_as_one_that_stands_still():
    first, log, printed, _ = node("a")
    first.report_silence({"kind": "silent", "node": "b", "is_there": True})
    assert log == [{"kind": "stopped", "node": "b", "what": "launcher", "process": 0}] and not printed
    first.view.take(log[0])
    first.report_silence({"kind": "heard", "node": "b", "is_there": True})
    assert log[1]["what"] == ""
    other, log, printed, _ = node("c")
    other.report_silence({"kind": "silent", "node": "", "is_there": True})
    assert other.view.stopped == {"a"} and "the launcher of node 0 (host host-a) stands still" in printed[0][1]
    other.report_silence({"kind": "heard", "node": "", "is_there": True})
    assert not other.view.stopped and "has resumed" in printed[1][1] and not log


def path(to, how, *, by="b", lost=0.0):
    return {"kind": "path", "round": 0, "node": by, "to": to, "path": how, "lost": lost}


def tell(sayings, *entries):
    for entry in entries:
        sayings.take(entry)
        sayings.view.take(entry)


def test_the_same_of_the_network_is_said_once_a_minute(monkeypatch):
    sayings, _, printed, _ = node("a")
    for at in (0.0, 10.0, 20.0, 61.0):
        monkeypatch.setattr("samebits.launcher.nodes.view.time.monotonic", lambda at=at: at)
        tell(sayings, path("c", "cut"), path("c", "works"))
        sayings.report_silence({"kind": "silent", "node": "b"})
        sayings.report_silence({"kind": "heard", "node": "b"})
    assert [text[:45] for _, text in printed] == 2 * [
        "node 1 (host host-b) and node 2 (host host-c)",
        "node 1 (host host-b) and node 2 (host host-c)",
        "node 1 (host host-b) has sent nothing for 5 s",
        "node 1 (host host-b) is back",
    ]


def test_where_packets_get_lost_that_alone_is_said():
    sayings, _, printed, _ = node("a")
    tell(sayings, path("b", "lossy", by="a", lost=0.31), path("b", "cut", by="a"), path("b", "lossy", by="a", lost=0.4))
    sayings.report_silence({"kind": "silent", "node": "b", "is_there": True})
    text = "31% of the packets between node 0 (host host-a) and node 1 (host host-b) are lost: exchanges wait for the network there, "
    assert printed == [("nodes", f"{text}not for the script")]
