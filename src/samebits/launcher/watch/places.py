"""From a word of the command line to a run folder, and its nodes: files that may be half written or hostile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.diagnosis.words import ranks_text
from samebits.machine.processes import began_ticks
from samebits.machine.regular_file import open_regular
from samebits.machine.visible import visible
from samebits.protocol.run_folder import MOST_BYTES, RunFolder, read_json, read_lines

GIVE_ONE = "Give a run's name or folder; `ls` of the folder of all runs shows what there is."
MOST_NODES = 10_000
MOST_RANKS = 4096
"""On one node."""


@dataclass(frozen=True)
class Roster:
    """The nodes of one start of the ranks."""

    hosts: tuple[str, ...]
    """`node 1 (host b)`, in their order."""
    sizes: tuple[int, ...]
    here: int
    """Whose folder it is."""

    @property
    def numbers(self) -> range:
        first = [0, *accumulate(self.sizes)][self.here]
        return range(first, first + self.sizes[self.here])

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """The ranks of the others."""
        return tuple(rank for rank in range(sum(self.sizes)) if rank not in self.numbers)

    @property
    def text(self) -> str:
        """`ranks 2-3 of 4, on node 1 (host b) of 2 nodes`."""
        count = len(self.sizes)
        nodes = f"{count} node{'s' * (count != 1)}"
        return f"{ranks_text(self.numbers)} of {sum(self.sizes)}, on {self.hosts[self.here]} of {nodes}"


def roster_of(lines: Sequence[dict[str, Any]]) -> Roster | None:
    """The last of the lines in `nodes.jsonl`; None if there is none, or it is none."""
    for entry in reversed(lines):
        nodes, here = entry.get("nodes"), entry.get("here")
        if not isinstance(nodes, list) or type(here) is not int or not 0 <= here < len(nodes) <= MOST_NODES:
            return None
        known = [found for one in nodes if (found := _node(one)) is not None]
        if len(known) < len(nodes):
            return None
        return Roster(tuple(host for host, _ in known), tuple(ranks for _, ranks in known), here)
    return None


def _node(entry: Any) -> tuple[str, int] | None:
    match entry:
        case {"node": int(number), "host": str(host), "ranks": int(ranks)} if 0 < ranks <= MOST_RANKS:
            return f"node {number} (host {visible(host)})", ranks
    return None


@dataclass(frozen=True)
class Run:
    """A run and what its launcher decided."""

    folder: RunFolder
    title: str
    """The script, module or function."""
    ranks: int
    """At its first start; later ones may have fewer."""
    launcher: tuple[int, int] = (0, 0)
    """The number of the launcher's process, and when that began."""
    has_nodes: bool = False
    """Whether the run has several nodes; then the folder is that of one of them."""

    @property
    def roster(self) -> Roster | None:
        """The nodes of its newest start; None on one node, and before they have met."""
        return roster_of(read_lines(self.folder.nodes)[-1:]) if self.has_nodes else None

    def as_json(self) -> dict[str, Any]:
        """Which run, for machines; with several nodes also which of them."""
        roster = self.roster
        entry: dict[str, Any] = {"run": str(self.folder.path)}
        return entry if roster is None else {**entry, "nodes": list(roster.hosts), "node": roster.hosts[roster.here]}

    @property
    def numbers_now(self) -> range:
        """The ranks of its newest start that are here; none before several nodes have met."""
        if not self.has_nodes:
            return range(self._ranks_now)
        return roster.numbers if (roster := self.roster) is not None else range(0)

    @property
    def _ranks_now(self) -> int:
        counts = [entry.get("ranks") for entry in read_lines(self.folder.restarts)[-1:]]
        return next((ranks for ranks in counts if type(ranks) is int and 0 < ranks <= self.ranks), self.ranks)

    @property
    def is_led(self) -> bool:
        """Whether its launcher is at work: without ranks, it is about to start them, or to say how the run ended."""
        pid, ticks = self.launcher
        return pid > 0 < ticks and began_ticks(pid) == ticks and not self.folder.outcome.exists()

    @property
    def text(self) -> str:
        """`samebits-runs/exp1  (train.py, 4 ranks)`."""
        here = f"{self.ranks} rank{'s' * (self.ranks != 1)}"
        if (roster := self.roster) is not None:
            here = roster.text
        elif self.has_nodes:
            here += ", its nodes have not met yet"
        return visible(f"{self.folder.path}  ({self.title}, {here})")


def run_at(word: str | None, runs: Path) -> Run:
    """The run that `word` names: a path, or what is below `runs`; None: the newest one there.

    Raises:
        UsageError: when there is none, or it is not one of this version.
    """
    path = _newest(runs) if word is None else _place(word, runs)
    folder = RunFolder(path)
    plan = _plan(folder.plan)
    ranks, title = plan.get("ranks"), plan.get("script") or plan.get("module") or plan.get("function")
    # The file may be anybody's: `type` and not `isinstance`, because True is an int.
    if type(ranks) is not int or not 0 < ranks <= MOST_RANKS or not isinstance(title, str):
        raise UsageError(f"{visible(str(path))} is not a run folder of this version.", GIVE_ONE)
    nodes = plan.get("nodes")
    has_nodes = isinstance(nodes, list) and nodes not in ([1, 1], [])
    match plan.get("launcher"):
        case [int(pid), int(ticks)]:
            return Run(folder, title, ranks, (pid, ticks), has_nodes)
    return Run(folder, title, ranks, has_nodes=has_nodes)


def _plan(path: Path) -> dict[str, Any]:
    """What the launcher decided; raises UsageError where the file may be anybody's."""
    try:
        size = path.lstat().st_size
        with open_regular(path, follow=False):
            if size <= MOST_BYTES:
                return read_json(path)
        problem = f"it has {size / 2**20:,.0f} MiB, more than any plan has"
    except FileNotFoundError:
        return {}
    except OSError as error:
        problem = str(error.strerror)
    raise UsageError(f"{visible(str(path))} cannot be read: {problem}.", GIVE_ONE)


def _place(word: str, runs: Path) -> Path:
    places = [place for place in (Path(word), runs / word) if _is_folder(place)]
    if not places:
        raise UsageError(f"There is no run {visible(word)}, neither here nor in {visible(str(runs))}.", GIVE_ONE)
    for place in places:
        if (place / "plan.json").exists():
            return place
    # A named run that saves its states has one folder for each start.
    return _newest(places[0])


def _newest(runs: Path) -> Path:
    found = []
    with suppress(OSError):
        for place in runs.iterdir():
            with suppress(OSError):
                found.append(((place / "plan.json").stat().st_mtime_ns, place))
    if not found:
        # A dot, or the empty word of a variable that is not set, would be lost in the sentence.
        raise UsageError(f"There is no run in {visible(str(Path.cwd() / runs if runs == Path() else runs))}.", GIVE_ONE)
    return max(found)[1]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
