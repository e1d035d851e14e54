"""What a node knows of the run from the list of all nodes (`RunView`: pure, the same on every node), and the notices of nodes for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from samebits.launcher.nodes.preflight import Check
from samebits.launcher.nodes.roster import Member, NodeRecord, Refused
from samebits.protocol.records import restored

SAY_AGAIN_S = 60.0
"""How often the same is said of the network between two nodes."""
LOSSY = "lossy"


@dataclass
class RunView:
    """The run, as far as the log says."""

    asking: dict[str, NodeRecord] = field(default_factory=dict)
    """The nodes that ask for the next round, in the order in which they came."""
    records: dict[str, NodeRecord] = field(default_factory=dict)
    """What each node published about itself when it asked last; a roster has only names."""
    round: int = -1
    """The newest one with a roster."""
    members: list[Member] = field(default_factory=list)
    """Of that round."""
    threads: int = 0
    """Per rank, in that round."""
    cores: int = 0
    """Of each node, where nobody named the threads; 0 where somebody did, or a round before decided them."""
    lanes: int | None = None
    """As the rounds before had them; None while the script decides."""
    gone: set[str] = field(default_factory=set)
    """Nodes whose agent ended, or cannot be reached any more."""
    fallen: list[str] = field(default_factory=list)
    """The nodes whose ranks are to end or have ended badly in this round, in that order."""
    leaving: set[str] = field(default_factory=set)
    """Nodes that are to end while the others continue."""
    regroups: bool = False
    """Whether this round ends only because other nodes are to take part."""
    keeps: bool = True
    """Whether no node published that this round's ranks are to end without a last snapshot."""
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    """How the ranks of a node ended in this round."""
    signals: list[tuple[str, int]] = field(default_factory=list)
    """Signals that people sent, and to which node."""
    decision: dict[str, Any] | None = None
    """What follows this round, once that is decided."""
    refused: dict[str, Refused] = field(default_factory=dict)
    hopeless: Refused | None = None
    """Why no round will ever begin; of those who come later too."""
    withdrawn: list[Refused] = field(default_factory=list)
    """Nodes that could not start, before the first round."""
    checks: list[Check] = field(default_factory=list)
    """Preflights, the newest last."""
    notes: list[str] = field(default_factory=list)
    """What people should know of this round's nodes."""
    stopped: set[str] = field(default_factory=set)
    """Nodes whose launcher or nursery was stopped by a signal."""
    paths: dict[tuple[str, str], str] = field(default_factory=dict)
    """Who published in this round that its path to whom is `doubtful` or `cut`."""
    saved: tuple[str, int] | None = None
    """Where node 0 has the run's newest state, and its step; None as long as there is none."""
    waits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the ranks of a node wait for in this round, as it published last; a new object each time."""

    def take(self, entry: dict[str, Any]) -> None:
        """Take the next entry of the log."""
        node = str(entry.get("node", ""))
        match entry.get("kind"):
            case "asks":
                record = restored(NodeRecord, entry["record"])
                self.asking[record.node] = self.records[record.node] = record
                self.gone.discard(record.node)
            case "refused" | "withdrawal":
                self._take_refusal(entry)
            case "roster" if entry["round"] == self.round + 1:
                self._begin(entry)
            case "preflight" | "listens" | "reached":
                self._take_of_check(entry)
            case "gone" | "leaves" | "stopped" | "signal" | "saved":
                self._take_of_node(node, entry)
            case _ if entry.get("round") == self.round:
                self._take_of_round(node, entry)

    def _take_of_node(self, node: str, entry: dict[str, Any]) -> None:
        """Take what holds whatever the round."""
        match entry["kind"]:
            case "gone":
                self.gone.add(node)
                self.paths = {pair: path for pair, path in self.paths.items() if node not in pair}
                self.asking.pop(node, None)
            case "leaves":
                self.leaving.add(node)
            case "stopped":
                (self.stopped.add if entry["what"] else self.stopped.discard)(node)
            case "signal":
                self.signals.append((node, int(entry["number"])))
            case "saved":
                self.saved = str(entry["place"]), int(entry["step"])

    def _take_refusal(self, entry: dict[str, Any]) -> None:
        refused = Refused(tuple(entry.get("nodes", ())), entry["problem"], entry["fix"])
        if entry["kind"] == "withdrawal":
            self.withdrawn += [refused] if self.round < 0 else []
            return
        self.hopeless = refused if entry.get("for_all") else self.hopeless
        for node in refused.nodes:
            self.refused[node] = refused
            self.asking.pop(node, None)

    def _take_of_check(self, entry: dict[str, Any]) -> None:
        if entry["kind"] == "preflight":
            self.checks.append(Check.of(entry))
        for check in self.checks:
            check.take(entry)

    def _take_of_round(self, node: str, entry: dict[str, Any]) -> None:
        """Take what a node publishes about this round; what it published about another one is too late."""
        match entry["kind"]:
            case "fall" if node not in self.fallen:
                self.fallen.append(node)
                self.keeps = self.keeps and bool(entry["keeps"])
                self.regroups = self.regroups or (bool(entry["regroups"]) and len(self.fallen) == 1)
            case "ended":
                self.ended[node] = entry["report"]
            case "decision":
                self.decision = entry["decided"]
            case "waits":
                self.waits[node] = entry["report"]
            case "path":
                self.paths.pop(pair := (node, str(entry["to"])), None)
                self.paths |= {pair: entry["path"]} if entry["path"] != "works" else {}

    def _begin(self, entry: dict[str, Any]) -> None:
        self.notes = list(entry.get("notes", []))
        self.round, self.threads, self.lanes = int(entry["round"]), int(entry["threads"]), entry["lanes"]
        self.cores = int(entry.get("cores", 0))
        self.members = [Member(number, self.records[node]) for number, node in entry["members"]]
        for member in self.members:
            self.asking.pop(member.record.node, None)
        self.fallen, self.ended, self.decision, self.regroups, self.keeps = [], {}, None, False, True
        self.waits, self.paths = {}, {}

    def addresses_elsewhere(self, node: str, own: str) -> dict[str, str]:
        """Those that the ranks of the other nodes of this round use, as the preflight found; none that is also `own`, so within one machine."""
        found = {one: check.listening[one]["address"] for check in self.checks for one in check.listening}
        return {one: found[one] for one in self.numbers() if one != node and found.get(one, own) != own}

    def cut_pairs(self) -> set[frozenset[str]]:
        """Nodes of this round that do not reach each other, as one of the two published."""
        return {frozenset(pair) for pair, path in self.paths.items() if path == "cut"}

    def refusal_of(self, node: str) -> Refused | None:
        """Why a node may not take part, if it may not."""
        return self.refused.get(node, self.hopeless)

    def numbers(self) -> dict[str, int]:
        """The number of each node of this round."""
        return {member.record.node: member.number for member in self.members}

    def lost_members(self) -> list[Member]:
        """Members of this round that are gone before they published how their ranks ended."""
        return [one for one in self.members if one.record.node in self.gone and one.record.node not in self.ended]

    def newcomers(self) -> list[NodeRecord]:
        """Nodes that ask and are not in this round, as many as there is room for."""
        return self._new()[: self._room()]

    def surplus(self) -> list[NodeRecord]:
        """Nodes for which there is no room."""
        return self._new()[self._room() :] if self.members else []

    def _new(self) -> list[NodeRecord]:
        return [one for node, one in self.asking.items() if node not in self.numbers()]

    def _room(self) -> int:
        here = [one for one in self.members if one.record.node not in self.gone | self.leaving]
        return max(max((one.record.most for one in self.members), default=0) - len(here), 0)

    def changes(self) -> str:
        """Who comes and who leaves, if the next round is to have other nodes; else empty."""
        leave = [f"{one.text} leaves" for one in self.members if one.record.node in self.leaving - self.gone]
        lost = [f"{one.text} is gone" for one in self.lost_members()]
        return ", ".join([*lost, *leave, *(f"host {one.host} joins" for one in self.newcomers())])

    def is_over(self) -> bool:
        """Whether all members of this round have published how their ranks ended, or are gone."""
        return all(one.record.node in self.ended or one.record.node in self.gone for one in self.members)

    def must_end(self, node: str) -> bool:
        """Whether the ranks of `node` are to end because of what happened elsewhere."""
        badly = (one for one, end in self.ended.items() if end.get("exit_code") and one not in self.leaving)
        return any(one != node for one in (*self.fallen, *badly)) or bool(self.lost_members())


@dataclass
class Notices:
    """One node's.

    Args:
        record: what it publishes about itself.
        view: what it knows of the run.
        publish: adds to the log.
        say: prints a line: its label and its text.
        on_notice: prints a notice of another node.
    """

    record: NodeRecord
    view: RunView
    publish: Callable[[dict[str, Any]], None]
    say: Callable[[str, str], None]
    on_notice: Callable[[dict[str, Any]], None]
    gauges: dict[str, list[list[float]]] = field(default_factory=dict)
    """Those of other nodes in this round, as they published them last; known on the first node."""
    _said: dict[tuple[str, frozenset[str]], float] = field(default_factory=dict)
    """When what was said last to begin between which two nodes."""
    _begun: set[tuple[str, frozenset[str]]] = field(default_factory=set)
    """Of it, what is not said to be over."""
    _lost: dict[frozenset[str], float] = field(default_factory=dict)
    """When it was known last that packets between two nodes get lost."""

    def members_elsewhere(self) -> list[Member]:
        """The other nodes of this round, in their order."""
        return [one for one in self.view.members if one.record.node != self.record.node]

    # What this node publishes

    def publish_of_round(self, kind: str, **fields: Any) -> None:
        """What this node publishes about its ranks in this round: `waits` and `gauges`, each of which replaces the one before."""
        self.publish({"kind": kind, "round": self.view.round, "node": self.record.node, **fields})

    def publish_notice(
        self, label: str, text: str, finding: str = "", ranks: Sequence[int] = (), about: str = ""
    ) -> None:
        """A notice that is printed on the other nodes too, but for a node that it is about."""
        self.publish_of_round("said", label=label, text=text, finding=finding, ranks=list(ranks), about=about)

    # What others publish

    def take(self, entry: dict[str, Any]) -> None:
        """Take what a node published; its notices are printed by those that are in its round."""
        is_member = any(one.record.node == self.record.node for one in self.view.members)
        is_for_us = is_member and self.record.node not in (entry.get("node"), entry.get("about"))
        match entry.get("kind"):
            case "gauges" if entry["round"] == self.view.round:
                self.gauges[entry["node"]] = entry["gauges"]
            case "said" if is_for_us and entry["round"] == self.view.round:
                self.on_notice(entry)
            case "withdrawal" if self.record.is_host and (self.view.round >= 0 or self.record.least < self.record.most):
                self.say("nodes", entry["problem"])
            case "path" if is_member and entry["round"] == self.view.round:
                self._report_path(entry)
            case "stopped" if is_for_us:
                self._report_stopped(entry)

    def report_silence(self, entry: dict[str, Any]) -> None:
        """Report that a node is silent, or no longer; of one whose machine answers, that its launcher stands still."""
        node = entry["node"]
        one = next(
            (one.record for one in self.view.members if node in (one.record.node, "" if one.record.is_host else None)),
            None,
        )
        is_silent = entry["kind"] == "silent"
        pair = frozenset({self.record.node, one.node if one is not None else node})
        is_still = entry.get("is_there") and not self._loses(pair)
        if one is not None and (is_still if is_silent else one.node in self.view.stopped):
            process = one.launcher if is_silent else 0
            entry = {"kind": "stopped", "node": one.node, "what": "launcher" if is_silent else "", "process": process}
            if self.record.is_host:
                self.publish(entry)
            else:
                # The connection to node 0 is the silent one, so only this node can know.
                self.view.take(entry)
                self.take(entry)
            return
        who = self._name_of(node)
        text = f"{who} has sent nothing for 5 s: its link is cut or loses much, or the machine stands still"
        text = text if is_silent else f"{who} is back"
        # Node 0 alone is connected to all others.
        if self._say_of("silent", pair, text, begins=is_silent) and self.record.is_host:
            self.publish_notice("nodes", text, about=node)

    def _say_of(self, what: str, pair: frozenset[str], text: str, *, begins: bool) -> bool:
        """Say that something begins between two nodes, once a minute at most, or that what was said is over; whether it was said.

        Where packets get lost, nodes are silent or cut off every few seconds: that they get lost is enough.
        """
        now, key = time.monotonic(), (what, pair)
        is_recent = now - self._said.get(key, -SAY_AGAIN_S) < SAY_AGAIN_S
        if is_recent or (what != LOSSY and self._loses(pair)) if begins else key not in self._begun:
            return False
        (self._begun.add if begins else self._begun.discard)(key)
        self._said |= {key: now} if begins else {}
        self.say("nodes", text)
        return True

    def _loses(self, pair: frozenset[str]) -> bool:
        """Whether packets between these nodes get lost, or did lately."""
        is_lossy = any(frozenset(one) == pair and path == LOSSY for one, path in self.view.paths.items())
        return is_lossy or time.monotonic() - self._lost.get(pair, -SAY_AGAIN_S) < SAY_AGAIN_S

    def _report_path(self, entry: dict[str, Any]) -> None:
        """Say that two nodes do not reach each other, do again, or lose much of what they send; before the view takes it."""
        pair, path = frozenset({entry["node"], entry["to"]}), entry["path"]
        one, other = (self._name_of(node) for node in sorted(pair, key=lambda node: self.view.numbers().get(node, 0)))
        was = self.view.paths.get((entry["node"], entry["to"]))
        if LOSSY in (path, was):
            self._lost[pair] = time.monotonic()
        if path == LOSSY:
            text = f"{entry['lost']:.0%} of the packets between {one} and {other} are lost"
            self._say_of(path, pair, f"{text}: exchanges wait for the network there, not for the script", begins=True)
            return
        if (was == "cut") == (path == "cut") or self.view.paths.get((entry["to"], entry["node"])) == "cut":
            return
        text = f"{one} and {other} reach each other again"
        if path == "cut":
            text = f"{one} and {other} have not reached each other for 5 s: what ranks send there is not acknowledged"
        self._say_of("cut", pair, text, begins=path == "cut")

    def _report_stopped(self, entry: dict[str, Any]) -> None:
        """Say that nobody watches the ranks of another node, or somebody again."""
        who, process = self._name_of(entry["node"]), entry["process"]
        if entry["what"] == "launcher":
            text = (
                f"the launcher of {who} stands still; if a signal has stopped it, kill -CONT {process} there resumes it"
            )
        elif entry["what"]:
            text = f"the {entry['what']} of {who} is stopped by a signal; kill -CONT {process} there resumes it"
        else:
            text = f"the launcher of {who} has resumed"
        self.say("nodes", text)

    def _name_of(self, node: str) -> str:
        """`node 1 (host b)`; the first node for an empty word."""
        named = (one.text for one in self.view.members if one.record.node == node or (one.record.is_host and not node))
        return next(named, "node 0")

    def give_up_stopped(self) -> str:
        """Continue without nodes that cannot publish how their ranks ended; returns why this one cannot, if it cannot."""
        for one in self.members_elsewhere():
            node = one.record.node
            if node not in self.view.stopped - self.view.gone - self.view.ended.keys():
                continue
            if self.record.is_host:
                self.publish({"kind": "given up", "node": node})
            elif one.record.is_host:
                return f"{one.text} is stopped by a signal"
        return ""
