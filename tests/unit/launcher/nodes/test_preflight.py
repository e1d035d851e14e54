"""Before ranks start, nodes are checked against each other: who takes part, who reaches whom, and what differs between them."""

import contextlib
import socket
import threading
import time
from dataclasses import replace

import pytest

from samebits.errors import UsageError
from samebits.launcher.nodes.gathering import Gathering
from samebits.launcher.nodes.preflight import MOST_PAIRED, Reach, notes, partners, unreachable
from samebits.launcher.nodes.roster import NodeRecord, missing, numbered
from samebits.launcher.nodes.view import RunView
from samebits.launcher.nodes.wire import Loop
from samebits.protocol.records import plain

FIRST = NodeRecord("a0", "a", 0, is_host=True, least=2, most=2, ranks=1, threads=2)
SECOND = replace(FIRST, node="b0", host="b", number=1, is_host=False)
PAIR = numbered([FIRST, SECOND], {})


class Log:
    """What links and the first node's launcher add; every view takes it at once."""

    def __init__(self, check_total=lambda _ranks, _lanes: None):
        self.view, self.entries, self.lock = RunView(), [], threading.Lock()
        self.gathering = Gathering(FIRST, self.view, self.add, check_total)
        self.readers, self.now_s = [], 0.0

    def add(self, entry):
        self.entries.append(entry)
        self.view.take(entry)
        for reader in self.readers:
            reader.take(entry)

    def ask(self, *records):
        for record in records:
            self.add({"kind": "asks", "record": plain(record)})
            self.decide()

    def decide(self):
        """As the first node does again and again; the last call is over each time."""
        self.now_s += 2.0
        self.gathering.decide(None, self.now_s, self.now_s)

    def kinds(self):
        return [entry["kind"] for entry in self.entries]


def reports(log, number=0, **unreached):
    for node in log.view.checks[number].nodes:
        message = {"number": number, "node": node}
        log.add({"kind": "listens", **message, "address": f"10.0.0.{node[0]}", "port": 5, "token": "t", "why": ""})
    for node in log.view.checks[number].nodes:
        log.add({"kind": "reached", "number": number, "node": node, "not": unreached.get(node, {})})
        log.decide()


def test_a_round_begins_once_all_have_reached_each_other():
    log = Log()
    log.ask(FIRST, SECOND)
    assert log.kinds() == ["asks", "asks", "preflight"]
    log.decide()
    assert log.kinds()[2:] == ["preflight"]
    reports(log)
    assert log.kinds()[-1] == "roster" and log.kinds().count("preflight") == 1
    log.add({"kind": "fall", "round": 0, "node": "a0", "regroups": False, "keeps": True})
    log.ask(FIRST, SECOND)
    assert log.view.round == 1 and log.kinds().count("preflight") == 1


def test_who_cannot_reach_whom_is_said_on_every_node():
    log = Log()
    log.ask(FIRST, SECOND)
    reports(log, b0={"a0": "nothing answers"})
    assert set(log.view.refused) == {"a0", "b0"} and log.view.round == -1
    printed = log.view.refused["a0"].problem
    assert printed == "Node 1 (host b) cannot reach node 0 (host a) at 10.0.0.a (nothing answers)."


def test_a_node_that_is_lost_during_the_check_is_not_waited_for():
    log = Log()
    one, two = replace(FIRST, least=1, most=2), replace(SECOND, least=1, most=2)
    log.gathering.record = one
    log.ask(one, two)
    log.add({"kind": "gone", "node": "b0"})
    log.decide()
    log.decide()
    assert [member.record.node for member in log.view.members] == ["a0"]


def test_a_newcomer_that_is_cut_off_is_refused_alone():
    log = Log()
    one, two, three = (replace(one, least=1, most=3) for one in (FIRST, SECOND, replace(SECOND, node="c0", number=2)))
    log.gathering.record = one
    log.ask(one, two)
    log.decide()
    reports(log)
    assert log.view.round == 0
    for record in (one, two, three):
        log.add({"kind": "asks", "record": plain(record)})
    log.decide()
    reports(log, 1, a0={"c0": "connection refused"})
    assert set(log.view.refused) == {"c0"}
    log.decide()
    assert log.view.round == 1 and set(log.view.numbers()) == {"a0", "b0"}


def test_more_ranks_than_the_run_can_have_are_refused_before_the_first_connection():
    def check_total(ranks, _lanes):
        if sum(ranks) > 1:
            raise UsageError("too many", "fewer")

    log = Log(check_total)
    log.ask(FIRST, SECOND)
    assert log.kinds()[-1] == "refused" and set(log.view.refused) == {"a0", "b0"}


def test_one_node_more_than_the_run_has_is_turned_away():
    log = Log()
    log.ask(FIRST, SECOND)
    reports(log)
    log.add({"kind": "asks", "record": plain(replace(SECOND, node="c0", host="c", number=None))})
    log.gathering.turn_away()
    assert log.view.refused["c0"].problem == "The run has its 2 nodes already, and host c is one more."
    assert set(log.view.refused) == {"c0"}


def test_two_first_nodes_are_two_nodes_with_one_number():
    log = Log()
    log.ask(FIRST, replace(SECOND, number=0))
    assert log.view.refused["a0"].problem == "Two nodes, a and b, were started as node 0."


def test_who_is_missing_has_a_name_where_the_launcher_knows_it():
    three = [replace(one, least=3, most=3) for one in (FIRST, SECOND)]
    assert missing(three, [], ("a", "b", "c")) == "waiting for 1 of 3 nodes: host c (node 2) never connected"
    assert missing(three, []) == "waiting for 1 of 3 nodes: node 2 never connected"


def test_processors_and_threads_that_differ_are_named():
    alike = [{"instruction sets": "avx2 avx512f"}, {"instruction sets": "avx2"}]
    members = numbered([replace(FIRST, alike=alike[0]), replace(SECOND, alike=alike[1], threads=4)], {})
    assert notes(members) == [
        "instruction sets differ, and bits may depend on them: avx2 avx512f on node 0 (host a); avx2 on node 1 (host b)",
        "threads per rank differ (2 on node 0 (host a), 4 on node 1 (host b)), and bits depend on them, so every rank takes at most 2",
    ]
    assert notes(PAIR) == []


def test_all_pairs_are_tried_up_to_64_nodes_and_then_every_node_is_on_many_ways():
    assert partners(1, 3) == [0, 2]
    assert len(partners(0, MOST_PAIRED)) == MOST_PAIRED - 1
    count = 1000
    ways = {place: partners(place, count) for place in range(count)}
    assert all(len(others) == 10 and place not in others for place, others in ways.items())
    assert {sum(place in others for others in ways.values()) for place in (0, 500, 999)} == {10}


@contextlib.contextmanager
def looping():
    """A loop that ticks quickly."""
    loop = Loop(0.05, lambda: None)
    yield loop
    loop.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_nodes_try_each_other_and_close_their_sockets(address):
    with looping() as loop:
        log, message = Log(), []
        log.ask(FIRST, SECOND)
        readers = [Reach(node, address, message.append, loop) for node in ("a0", "b0")]
        message.append(log.entries[-1])
        while len(log.view.checks[0].reports) < 2 or any(reader._listener for reader in readers):
            while message:  # all take an entry before anything that follows it
                entry = message.pop(0)
                if entry["kind"] != "preflight":
                    log.add(entry)
                for reader in readers:
                    reader.take(entry)
            loop.wait(0.1)
            for reader in readers:
                reader.look(time.monotonic())
        assert unreachable(log.view.checks[0], PAIR) is None
        reached = [entry for entry in log.entries if entry["kind"] == "reached"]
        assert [entry["not"] for entry in reached] == [{}, {}]
        for entry in (entry for entry in log.entries if entry["kind"] == "listens"):
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as late:
                assert late.connect_ex((address, entry["port"])) != 0


def test_what_is_not_the_node_itself_does_not_count_as_reached():
    with socket.create_server(("127.0.0.1", 0)) as other:
        answering = threading.Thread(target=answer_once, args=(other,))
        answering.start()
        check = told_by_reach(other.getsockname()[1])
        answering.join()
    assert check == {"b0": "another program answers"}
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert told_by_reach(nobody.getsockname()[1]) == {"b0": "connection refused"}


def answer_once(listener):
    with listener.accept()[0] as end:
        end.sendall(b"HTTP/1.1 400 Bad Request")


def told_by_reach(port):
    """What a0 reports of b0, which seems to listen at `port`."""
    message = {}

    def tell(entry):
        message[entry["kind"]] = entry
        if entry["kind"] == "listens":
            reach.take(entry)
            reach.take({**entry, "node": "b0", "port": port, "token": "t"})

    with looping() as loop:
        reach = Reach("a0", "127.0.0.1", tell, loop)
        reach.take({"kind": "preflight", "number": 0, "nodes": ["a0", "b0"]})
        while "reached" not in message:
            loop.wait(1.0)
            reach.look(time.monotonic())
        reach.take({"kind": "refused", "nodes": ["a0"], "problem": "", "fix": ""})
    return message["reached"]["not"]
