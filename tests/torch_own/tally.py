"""How torch's tests went over two backends, and the table of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KINDS = {False: "for CPUs", True: "for GPUs, let onto the CPU"}
WIDTH = 100


@dataclass(frozen=True)
class Outcome:
    """Of one test over one backend."""

    state: str
    """`passed`, `failed`, `skipped`, `hung` (ended by the time limit) or `died` (it took its process with it)."""
    why: str = ""
    """The last line of what went wrong."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Tally:
    """What both backends did with the tests that Gloo was asked to run."""

    gloo: Mapping[str, Outcome]
    ours: Mapping[str, Outcome]
    """Of those that Gloo passed, and no others."""
    gpu_only: frozenset[str]
    """Tests that torch runs on GPUs alone."""

    def only_we_fail(self) -> list[str]:
        """Names of what Gloo passed and we did not, a skip or a test that was not run included."""
        return [name for name in passed(self.gloo) if self._ours(name).state != "passed"]

    def counts(self, gpu_only: bool) -> tuple[int, int]:
        """How many Gloo passed, and how many of these we did."""
        there = [name for name in passed(self.gloo) if (name in self.gpu_only) is gpu_only]
        return len(there), sum(self._ours(name).state == "passed" for name in there)

    def _ours(self, name: str) -> Outcome:
        return self.ours.get(name, Outcome("not run"))

    def table(self) -> str:
        """A line for each kind of test, their sum, and the names of what fails only with us."""
        lines = [f"{'':<28}{'passed by Gloo':>16}{'of these by samebits':>24}"]
        rows = {title: self.counts(kind) for kind, title in KINDS.items()}
        rows["together"] = tuple(map(sum, zip(*rows.values(), strict=True)))
        lines += [f"{title:<28}{gloo:>16}{ours:>24}" for title, (gloo, ours) in rows.items()]
        lost = self.only_we_fail()
        lines.append("Only samebits fails: none" if not lost else "Only samebits fails:")
        for name in lost:
            outcome = self._ours(name)
            lines.append(f"  {name}: {outcome.state} {outcome.why[:WIDTH]}".rstrip())
        return "\n".join(lines)


def passed(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Names of the tests that went well, in their order."""
    return [name for name, outcome in outcomes.items() if outcome.state == "passed"]


def chosen(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """The names that hold one of the words; all without words."""
    return [name for name in names if not words or any(word in name for word in words)]
