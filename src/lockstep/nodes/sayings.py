"""What nodes tell each other in a round beside how it goes on: what their ranks wait for, their gauges, what they say for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.nodes.record import NodeRecord
from lockstep.nodes.roster import Member
from lockstep.nodes.view import RunView
from lockstep.nodes.withdrawal import Withdrawal


@dataclass
class Sayings:
    """One node's.

    Args:
        record: what it says about itself.
        view: what it knows of the run.
        tell: adds to the log.
        say: prints a line: its label and its text.
        hear: prints what another node said.
    """

    record: NodeRecord
    view: RunView
    tell: Callable[[dict[str, Any]], None]
    say: Callable[[str, str], None]
    hear: Callable[[dict[str, Any]], None]
    gauges: dict[str, list[list[float]]] = field(default_factory=dict)
    """Those of other nodes in this round, as they told them last; known on the first node."""

    def members_elsewhere(self) -> list[Member]:
        """The other nodes of this round, in their order."""
        return [one for one in self.view.members if one.record.node != self.record.node]

    # What this node tells

    def tell_waits(self, told: dict[str, Any]) -> None:
        """What the ranks here wait for, as long as nothing else is told."""
        self._tell_of_round("waits", told=told)

    def tell_said(self, label: str, text: str, finding: str = "", ranks: Sequence[int] = (), about: str = "") -> None:
        """Something is said here that people at other nodes should read too, but for a node that it is about."""
        self._tell_of_round("said", label=label, text=text, finding=finding, ranks=list(ranks), about=about)

    def tell_gauges(self, gauges: list[list[float]]) -> None:
        """Where the ranks here are and what their time went into, over what was told before; not in the log."""
        self._tell_of_round("gauges", gauges=gauges)

    def _tell_of_round(self, kind: str, **told: Any) -> None:
        self.tell({"kind": kind, "round": self.view.round, "node": self.record.node, **told})

    # What others tell

    def take(self, told: dict[str, Any]) -> None:
        """Take what a node told; what it says for people is said by those that are in its round."""
        is_member = any(one.record.node == self.record.node for one in self.view.members)
        is_heard = is_member and self.record.node not in (told.get("node"), told.get("about"))
        match told.get("kind"):
            case "gauges" if told["round"] == self.view.round:
                self.gauges[told["node"]] = told["gauges"]
            case "said" if is_heard and told["round"] == self.view.round:
                self.hear(told)
            case "withdrawal" if self.record.is_host and (self.view.round >= 0 or self.record.least < self.record.most):
                self.say("nodes", Withdrawal.of(told).refused().problem)
            case "path" if is_member and told["round"] == self.view.round:
                self._say_path(told)
            case "stopped" if is_heard:
                self._say_stopped(told)

    def say_silent(self, told: dict[str, Any]) -> None:
        """Say that nothing is heard of a node any more, or something again; of one whose machine answers, that its launcher stands still."""
        node = told["node"]
        one = next(
            (one.record for one in self.view.members if node in (one.record.node, "" if one.record.is_host else None)),
            None,
        )
        is_silent = told["kind"] == "silent"
        if one is not None and (told.get("is_there") if is_silent else one.node in self.view.stopped):
            process = one.launcher if is_silent else 0
            entry = {"kind": "stopped", "node": one.node, "what": "launcher" if is_silent else "", "process": process}
            if self.record.is_host:
                self.tell(entry)
            else:  # nobody else could tell
                self.view.take(entry)
                self.take(entry)
            return
        who = self._name_of(node)
        text = f"{who} has not been heard of for 5 s: its link is cut, or the machine stands still"
        text = text if is_silent else f"{who} is heard of again"
        self.say("nodes", text)
        if self.record.is_host:  # it alone hears of all others
            self.tell_said("nodes", text, about=node)

    def _say_path(self, told: dict[str, Any]) -> None:
        """Say once that two nodes do not reach each other, or do again; before the view takes it."""
        pair = {told["node"], told["to"]}
        was_cut = self.view.paths.get((told["node"], told["to"])) == "cut"
        is_cut = told["path"] == "cut"
        if was_cut == is_cut or self.view.paths.get((told["to"], told["node"])) == "cut":
            return
        one, other = (self._name_of(node) for node in sorted(pair, key=lambda node: self.view.numbers().get(node, 0)))
        text = f"{one} and {other} reach each other again"
        if is_cut:
            text = f"{one} and {other} have not reached each other for 5 s: what ranks send there is not acknowledged"
        self.say("nodes", text)

    def _say_stopped(self, told: dict[str, Any]) -> None:
        """Say that nobody watches the ranks of another node, or somebody again."""
        who, process = self._name_of(told["node"]), told["process"]
        if told["what"] == "launcher":
            text = f"the launcher of {who} stands still; if a signal has stopped it, kill -CONT {process} there lets it go on"
        elif told["what"]:
            text = f"the {told['what']} of {who} is stopped by a signal; kill -CONT {process} there lets it go on"
        else:
            text = f"the launcher of {who} goes on"
        self.say("nodes", text)

    def _name_of(self, node: str) -> str:
        """`node 1 (host b)`; the first node for an empty word."""
        named = (one.text for one in self.view.members if one.record.node == node or (one.record.is_host and not node))
        return next(named, "node 0")

    def give_up_stopped(self) -> str:
        """Go on without nodes that cannot tell how their ranks ended; returns why this one cannot, if it cannot."""
        for one in self.members_elsewhere():
            node = one.record.node
            if node not in self.view.stopped - self.view.gone - self.view.ended.keys():
                continue
            if self.record.is_host:
                self.tell({"kind": "given up", "node": node})
            elif one.record.is_host:
                return f"{one.text} is stopped by a signal"
        return ""
