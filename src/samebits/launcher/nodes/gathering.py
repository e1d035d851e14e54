"""What the run's first node decides before a round: who takes part, who is refused, and whether a preflight is needed first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.nodes.preflight import Check, notes, unreachable
from samebits.launcher.nodes.roster import Member, NodeRecord, Refused, disagreement, is_complete, numbered, surplus
from samebits.launcher.nodes.view import RunView

AWAY_S = 10.0
"""How long a round waits for nodes of the round before that are there but have not asked again."""


@dataclass
class Gathering:
    """That of one run, from round to round.

    Args:
        record: the first node's.
        view: what the log says.
        publish: adds to the log.
        check_total: raises UsageError when the run cannot have so many ranks on its nodes, with the lanes that it has had so far.
    """

    record: NodeRecord
    view: RunView
    publish: Callable[[dict[str, Any]], None]
    check_total: Callable[[Sequence[int], int | None], None]
    enough_since: float = 0.0
    """Since when as many nodes ask as the run needs; 0.0 while there are fewer."""
    _published: set[tuple[str, int]] = field(default_factory=set)

    def asking(self) -> list[NodeRecord]:
        """Those who ask: the first node, those of the round before, then the others as they came."""
        old = self.view.numbers()
        asking = sorted(self.view.asking.values(), key=lambda record: (not record.is_host, record.node not in old))
        return asking or [self.record]

    def decide(self, lanes: int | None, began: float, now: float, threads: int = 0) -> None:
        """Begin the next round, if its nodes are there and nothing is against it.

        Args:
            lanes: those of the rounds before.
            began: when this node began to wait for the others.
            now: the time.
            threads: those of the rounds before; 0 where the nodes' own decide.
        """
        asking = self.asking()
        self.enough_since = (self.enough_since or now) if len(asking) >= self.record.least else 0.0
        if (refused := disagreement(asking) or self._lacking()) is not None:
            self._refuse(refused)
        elif not self._waits(asking, began, now):
            self._settle(asking[: self.record.most], lanes, threads)

    def _lacking(self) -> Refused | None:
        """Why a run that needs all its nodes cannot begin: one of them could not start."""
        if self.record.least < self.record.most or not self.view.withdrawn:
            return None
        return self.view.withdrawn[0]

    def turn_away(self) -> None:
        """Refuse nodes for which a run with a fixed number of nodes has no room."""
        if self.record.least == self.record.most:
            for one in self.view.surplus():
                self._refuse(surplus(self.record, one))

    def _waits(self, asking: list[NodeRecord], began: float, now: float) -> bool:
        """Whether others may come yet; or this round has its roster already."""
        away = [
            one.record.node
            for one in self.view.members
            if one.record.node not in self.view.asking and one.record.node not in self.view.gone | self.view.leaving
        ]
        # Only the first round has a last call; later ones wait for members that are away.
        since = self.enough_since if self.view.round < 0 else 0.0
        complete = is_complete(asking, away if now - began <= AWAY_S else [], since, now)
        return not self.enough_since or not complete or ("roster", self.view.round + 1) in self._published

    def _settle(self, asking: list[NodeRecord], lanes: int | None, threads: int) -> None:
        """Begin the round with these nodes, unless something is against it or not known yet."""
        members = numbered(asking, self.view.numbers())
        refused, check = self._too_many_ranks(members, lanes), None
        if refused is None:
            if (check := self._check_of(asking)) is None:
                return
            refused = unreachable(check, members)
        if refused is not None:
            self._refuse(refused)
            return
        self._published.add(("roster", self.view.round + 1))
        self.publish(
            {
                "kind": "roster",
                "round": self.view.round + 1,
                "lanes": lanes,
                "threads": threads or min(member.record.threads for member in members),
                "cores": 0 if threads else min(member.record.cores for member in members),
                "notes": notes(members),
                "members": [[member.number, member.record.node] for member in members],
            }
        )

    def _check_of(self, asking: list[NodeRecord]) -> Check | None:
        """The preflight of these nodes; None while it is under way. Begins it if there was none."""
        nodes, number = [one.node for one in asking], len(self.view.checks)
        if len(nodes) == 1:
            return Check(number, tuple(nodes))
        check = next((one for one in self.view.checks if one.covers(nodes)), None)
        if check is not None:
            return check if check.is_over(self.view.gone) else None
        if ("preflight", number) not in self._published:
            self._published.add(("preflight", number))
            self.publish({"kind": "preflight", "number": number, "nodes": nodes})
        return None

    def _too_many_ranks(self, members: list[Member], lanes: int | None) -> Refused | None:
        try:
            self.check_total([member.record.ranks for member in members], lanes)
        except UsageError as error:
            return Refused(tuple(one.record.node for one in members), error.problem, error.fix)
        return None

    def _refuse(self, refused: Refused) -> None:
        """Before the first round nobody knows who is right, so all end; later only newcomers do."""
        old = self.view.numbers() if self.view.round >= 0 else {}
        nodes = tuple(node for node in refused.nodes if old and node not in old) or tuple(self.view.asking)
        entry = {"nodes": list(nodes), "for_all": not old, "problem": refused.problem, "fix": refused.fix}
        self.publish({"kind": "refused", **entry})
        # The entry comes back with the next reading; until then nobody is refused twice.
        for node in nodes:
            self.view.asking.pop(node, None)
