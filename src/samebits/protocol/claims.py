"""The last lines of a run: what is claimed of its bits, and what is not. One pure function owns them.

Nothing is claimed that was not proved, and what was found stands beside it. A run that resumed without something has no claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HASH_DIGITS = 12
"""How much of a hash is shown; nobody compares more by eye, and files have all of it."""
MOST_NAMED = 4


@dataclass(frozen=True)
class Proved:
    """What was proved of a script before the run, by short runs of it."""

    steps: int
    ranks: Sequence[int]
    lanes: int
    threads: int
    day: str = ""
    """As it is said: 28 Nov."""
    args: str = ""
    """The arguments with which it was proved, if they are others than this run's."""

    def of(self, result: Mapping[str, Any]) -> str:
        """What that says of a run; empty where it had other lanes or threads. `result`: what is in its `result.json`."""
        if (self.lanes, self.threads) != (result.get("lanes"), result.get("threads")):
            return ""
        if self.args:
            return f"proved with {self.args}"
        return f"proved on {', '.join(map(str, self.ranks))} ranks, {self.day}"


@dataclass(frozen=True)
class BitsFacts:
    """What is known at the end of a run; the defaults are those of a run of which nothing is."""

    digest: str
    """`sha256:...` of all weights and buffers that were prepared."""
    lanes: int = 1
    threads: int = 1
    is_exact: bool = True
    """Whether the run's numerics promise anything."""
    portable_torch: str = ""
    """Under portable numerics, torch's version."""
    ranks_are_fixed: bool = False
    """Whether the run cannot have another number of ranks."""
    proved: str = ""
    """What was proved before, as `Proved.of` says it; empty where nothing was."""
    to_prove: str = ""
    """The command whose proof later runs say; empty where none is remembered."""
    handed_on: Sequence[str] = ()
    """What lanes hand on to other lanes, each with its line."""
    own_samples: Sequence[str] = ()
    """What data sets keep from one sample to the next, each with its line."""
    unread: Sequence[str] = ()
    """What the loop reads and no look could."""
    copied: Sequence[str] = ()
    """What the script has changed of a data set inside an epoch."""
    without: Sequence[str] = ()
    """What a run that resumed began anew."""
    uncovered: Sequence[str] = ()
    """What else the run has trained or measured, which the hash is not of."""

    @classmethod
    def of(cls, result: Mapping[str, Any], decided: Mapping[str, Any]) -> BitsFacts:
        """From what the ranks left in the run folder: `result.json` and `decided.json`, which may be anything."""
        arithmetic = _mapping(decided.get("arithmetic"))
        is_portable = arithmetic.get("numerics") == "portable"
        return cls(
            str(result.get("bits") or ""),
            _whole(result.get("lanes")),
            _whole(result.get("threads")),
            is_exact=not (decided.get("not_exact") or arithmetic.get("numerics") == "fast" or arithmetic.get("allow")),
            portable_torch=str(_mapping(decided.get("fingerprint")).get("torch")) if is_portable else "",
            ranks_are_fixed=bool(decided.get("ranks_are_fixed")),
            proved=str(result.get("proved") or ""),
            to_prove=str(result.get("to_prove") or ""),
            **{
                name: _texts(result.get(name))
                for name in ("handed_on", "own_samples", "unread", "copied", "without", "uncovered")
            },
        )


def claims(facts: BitsFacts, *, is_detailed: bool = False) -> list[tuple[str, str, str]]:
    """The lines: label, text, and what stands behind it in the colour of what is less important.

    Args:
        facts: at least with a digest.
        is_detailed: whether the hash is shown whole.
    """
    digest = facts.digest if is_detailed else facts.digest.removeprefix("sha256:")[:HASH_DIGITS]
    lines = [("bits", digest, _claim(facts))]
    if facts.without:
        lines.append(("resumed", f"without {_listed(facts.without)}, which no state holds: it began anew", ""))
    if facts.handed_on:
        lines.append(("lanes", f"hand on {_listed(facts.handed_on)}: lanes elsewhere may get something else", ""))
    if facts.own_samples:
        lines.append(("samples", f"depend on {_listed(facts.own_samples)}: other ranks and workers may get others", ""))
    if facts.unread:
        lines.append(
            (
                "unseen",
                f"{_listed(facts.unread)}: no look could read it; where it changes, a lane or a resumed run may get something else",
                "",
            )
        )
    if facts.uncovered and not facts.without:
        lines.append(("covers", f"the weights that were prepared; not {_listed(facts.uncovered)}", ""))
    return lines


def _claim(facts: BitsFacts) -> str:
    """What gives the same bits elsewhere."""
    if facts.without:
        return "of this run alone: it resumed without something"
    if facts.copied:
        return f"of these loader workers alone: {_listed(facts.copied)} was changed inside an epoch"
    if not facts.is_exact:
        return "another run may give others"
    parts = [_count(facts.lanes, "lane"), _count(facts.threads, "thread")]
    if facts.portable_torch:
        place = f"on any x86-64 with AVX2 (torch {facts.portable_torch}, {', '.join(parts)})"
    else:
        place = f"with {' and '.join(parts)}"
    if facts.lanes <= 1 or facts.ranks_are_fixed:
        return place
    if facts.proved:
        return f"{place}; {facts.proved}"
    # Where a line below says that other ranks may get something else, it says more.
    is_open = facts.to_prove and not (facts.handed_on or facts.own_samples)
    return f"{place}; not proved yet: {facts.to_prove}" if is_open else place


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _whole(value: object) -> int:
    return value if type(value) is int and value > 0 else 1


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
