"""Node 0 and the others over real sockets: one list for all, who comes, who is silent, who is gone."""

import socket
import threading
import time

import pytest

from samebits.launcher.nodes import node_star
from samebits.launcher.nodes import star as star_module
from samebits.launcher.nodes.key import Key
from samebits.launcher.nodes.streams import FORTH, Exit
from samebits.launcher.nodes.wire import WireEnded
from tests.support.stars import LIMIT_S, Sky


@pytest.fixture
def sky():
    made = Sky()
    yield made
    made.close()


def test_all_read_what_anybody_tells_in_one_order(sky):
    sky.joined("b", "c")
    for number in range(20):
        for name in "abc":
            sky.stars[name].publish({"kind": "said", "by": name, "number": number})
    sky.until(lambda: all(len(sky.entries(name)) == 60 for name in "abc"))
    assert sky.entries("a") == sky.entries("b") == sky.entries("c")
    for name in "abc":
        assert [one["number"] for one in sky.entries("b") if one["by"] == name] == list(range(20))


def test_whoever_comes_late_reads_what_still_counts(sky):
    sky.host.publish({"kind": "asks", "record": 1})
    sky.host.publish({"kind": "said", "round": 0})
    sky.host.publish({"kind": "roster", "round": 1})
    sky.host.publish({"kind": "said", "round": 1})
    sky.joined("b")
    sky.until(lambda: len(sky.entries("b")) == 3)
    assert [one["kind"] for one in sky.entries("b")] == ["asks", "roster", "said"]
    assert len(sky.entries("a")) == 4


def test_a_node_that_dies_is_gone_for_all_in_the_same_place_of_the_list(sky):
    sky.joined("b", "c", "d")
    for wire in sky.stars.pop("b").wires().values():
        wire.close()
    sky.stars["c"].publish({"kind": "said"})
    sky.until(lambda: all(len(sky.entries(name)) == 2 for name in "acd"))
    assert sky.entries("a") == sky.entries("c") == sky.entries("d")
    assert {"kind": "gone", "node": "b"} in sky.entries("a")


def test_a_node_that_turns_out_to_be_gone_while_something_is_sent_is_gone_after_that(sky, monkeypatch):
    sky.joined("b", "c")

    def ended(_content):
        raise WireEnded("it has ended")

    monkeypatch.setattr(sky.host._nodes["b"], "send_packed", ended)
    sky.host.publish({"kind": "said"})
    sky.until(lambda: len(sky.entries("c")) == 2)
    assert [one["kind"] for one in sky.entries("c")] == ["said", "gone"] == sky.kinds("a")[1:]


def test_when_node_0_dies_the_others_know_why(sky):
    sky.joined("b")
    for wire in sky.stars.pop("a").wires().values():
        wire.close()
    sky.until(lambda: "cut" in sky.kinds("b"))
    assert sky.heard["b"][-1]["why"] == "node 0 is gone (it has ended)"
    sky.stars["b"].publish({"kind": "said"})


def test_what_was_told_last_is_heard_although_its_node_ends_at_once(sky):
    sky.joined("b")
    left = sky.stars.pop("b")
    left.publish({"kind": "ended", "report": "x" * 3_000_000})
    closing = threading.Thread(target=left.close)
    closing.start()
    sky.until(lambda: "gone" in sky.kinds("a"))
    closing.join(LIMIT_S)
    assert [one["kind"] for one in sky.entries("a")] == ["ended", "gone"]


def test_what_node_0_told_last_is_heard_by_a_node_whose_own_message_fails_first(sky):
    sky.joined("b")
    sky.host.publish({"kind": "refused", "problem": "why"})
    sky.host._spread()
    for wire in sky.stars.pop("a").wires().values():
        wire.close()
    # The kernel refuses the second at the latest, once the other side has answered the first.
    for _ in range(2):
        sky.stars["b"].publish({"kind": "asks"})
        time.sleep(0.05)
    sky.until(lambda: "cut" in sky.kinds("b"))
    assert sky.kinds("b")[-2:] == ["refused", "cut"]


def test_a_node_that_asked_and_ended_is_gone_behind_all_that_it_told(sky, monkeypatch):
    sky.joined("b")

    def ended(_content):
        raise WireEnded("it has ended")

    monkeypatch.setattr(sky.host._nodes["b"], "send_packed", ended)
    sky.host.handlers["question"] = lambda node, _message, _blob: sky.host.send_to(node, {"kind": "answer"})
    sky.stars["b"].publish({"kind": "question"})
    sky.stars["b"].publish({"kind": "ended"})
    for wire in sky.stars.pop("b").wires().values():
        wire.close()
    sky.until(lambda: len(sky.entries("a")) == 2)
    assert [one["kind"] for one in sky.entries("a")] == ["ended", "gone"]


def test_streams_end_although_their_node_ends_them_and_itself_at_the_same_time(sky, monkeypatch):
    sky.joined("b")
    ends = []

    def connect(_to):
        ends.append(socket.socketpair())
        return ends[-1][0]

    way_out, streams = Exit(sky.host, connect), [{"kind": FORTH, "to": "7", "of": number} for number in range(3)]
    for stream in streams:
        sky.stars["b"].send({**stream, "begins": True})
    sky.until(lambda: len(ends) == 3)
    for stream in streams:
        sky.stars["b"].send({**stream, "ends": True})
    for wire in sky.stars.pop("b").wires().values():
        wire.close()

    def ended(_content):
        raise WireEnded("it has ended")

    monkeypatch.setattr(sky.host._nodes["b"], "send_packed", ended)
    way_out.close()
    sky.until(lambda: "gone" in sky.kinds("a"))
    assert [other.recv(1) for _, other in ends] == [b""] * 3
    for _, other in ends:
        other.close()


def test_node_0_stays_until_the_others_have_heard_the_end(sky, monkeypatch):
    sky.joined("b")
    sky.host.publish({"kind": "decision"})
    host = sky.stars.pop("a")
    closing = threading.Thread(target=host.close)
    closing.start()
    sky.until(lambda: "decision" in sky.kinds("b"))
    assert closing.is_alive()
    sky.stars.pop("b").close()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    monkeypatch.setattr(Sky, "close", lambda _self: None)


def test_node_0_is_called_again_while_it_may_not_have_begun():
    sky = Sky()
    place, key = sky.place, sky.key
    sky.close()
    star = node_star.NodeStar("b", place, key, "", 0.3)
    heard = []
    end = time.monotonic() + LIMIT_S
    while not any(one["kind"] == "failed" for one in heard) and time.monotonic() < end:
        heard += star.read()
    star.close()
    assert [one["kind"] for one in heard] == ["unreachable", "failed"]
    assert "Nobody listens" in heard[0]["why"] and not heard[1]["is_usage"]


def test_another_key_is_said_on_both_sides(sky):
    sky.node("b", key=Key.made())
    sky.until(lambda: "failed" in sky.kinds("b"))
    assert sky.heard["b"][0]["kind"] == "failed" and "key is not that of node 0" in sky.heard["b"][0]["why"]
    sky.until(lambda: "unauthenticated" in sky.kinds("a"))
    assert sky.heard["a"][-1] == {"kind": "unauthenticated", "address": "127.0.0.1"}


def test_a_node_that_is_given_up_learns_why(sky):
    sky.joined("b")
    sky.host.publish({"kind": "given up", "node": "b"})
    sky.until(lambda: "cut" in sky.kinds("b"))
    assert sky.heard["b"][-1]["why"] == "node 0 gave this node up: its launcher is stopped"
    sky.until(lambda: "gone" in sky.kinds("a"))


def silence(monkeypatch, silent_s=0.3, given_up_s=0.6):
    monkeypatch.setattr(star_module, "SILENT_S", silent_s)
    monkeypatch.setattr(star_module, "GIVEN_UP_S", given_up_s)
    monkeypatch.setattr(star_module, "BEAT_S", 0.05)


def test_a_launcher_that_stands_still_is_named_and_not_given_up_while_its_machine_is_there(monkeypatch):
    silence(monkeypatch)
    sky = Sky()
    sky.joined("b")
    still = sky.stars.pop("b")
    sky.until(lambda: "silent" in sky.kinds("a"))
    assert sky.heard["a"][-1] == {"kind": "silent", "node": "b", "is_there": True}
    end = time.monotonic() + 1.0
    sky.until(lambda: time.monotonic() > end)
    assert sky.host.nodes() == ["b"]
    sky.stars["b"] = still
    sky.until(lambda: "heard" in sky.kinds("a"))
    assert "cut" not in sky.kinds("b")
    sky.close()


def test_a_machine_that_acknowledges_nothing_is_given_up_and_gives_itself_up(monkeypatch):
    silence(monkeypatch)
    sky = Sky()
    sky.joined("b")
    monkeypatch.setattr("samebits.launcher.nodes.wire.Wire.is_acknowledged", property(lambda _self: False))
    monkeypatch.setattr("samebits.launcher.nodes.wire.Wire.receive", lambda _self: [])
    monkeypatch.setattr("samebits.launcher.nodes.wire.Wire.send_packed", lambda _self, _content: None)
    sky.until(lambda: "cut" in sky.kinds("b") and "gone" in sky.kinds("a"))
    assert sky.heard["b"][-1]["why"].startswith("nothing was received from node 0 for")
    sky.close()


def test_a_node_that_stood_still_itself_blames_nobody(monkeypatch):
    silence(monkeypatch, silent_s=1.0, given_up_s=2.0)
    monkeypatch.setattr(star_module, "STILL_S", 0.5)
    sky = Sky()
    sky.joined("b")
    monkeypatch.setattr("samebits.launcher.nodes.wire.Wire.is_acknowledged", property(lambda _self: False))
    for star in sky.stars.values():
        for wire in star.wires().values():
            wire.received_at -= 5.0
        star._looked_at -= 5.0
    sky.until(lambda: True)
    end = time.monotonic() + 0.5
    sky.until(lambda: time.monotonic() > end)
    assert not {"silent", "cut", "gone"} & {*sky.kinds("a"), *sky.kinds("b")}
    sky.close()


def test_messages_that_are_no_entries_go_to_their_taker_alone(sky):
    sky.joined("b", "c")
    found = []
    sky.host.handlers["keys"] = lambda node, message, blob: found.append((node, message["id"], blob))
    sky.stars["b"].handlers["keys"] = lambda node, message, blob: found.append((node, message["id"], blob))
    sky.stars["b"].send({"kind": "keys", "id": 1}, b"asked")
    sky.until(lambda: len(found) == 1)
    sky.host.send_to("b", {"kind": "keys", "id": 2}, b"answered")
    sky.until(lambda: len(found) == 2)
    assert found == [("b", 1, b"asked"), ("", 2, b"answered")]
    sky.host.send_to("gone", {"kind": "keys", "id": 3})
    sky.stars["b"].publish({"kind": "gauges", "node": "b"})
    sky.until(lambda: "gauges" in sky.kinds("a"))
    assert "gauges" not in sky.kinds("c")
