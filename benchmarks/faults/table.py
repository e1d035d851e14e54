"""Outcomes as tables for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from benchmarks.faults.outcome import Outcome

HEAD = (
    "| fault | goal | samebits says | names | after | then | torchrun + DDP says | names | after | then |\n"
    + "|---" * 10
    + "|"
)
LONGEST = 200


def line(outcome: Outcome) -> str:
    """One outcome, for the terminal."""
    said = outcome.trouble or _short(outcome.said) or "nothing"
    after = _seconds(outcome.said_after_s)
    return f"{outcome.title}, {outcome.ranks} ranks: {after}: {said} [{_named(outcome)}]; {_then(outcome)}"


def table(outcomes: Sequence[Outcome], ours: str) -> str:
    """One row for each fault: samebits on each number of ranks, with ` / ` between them, and the other side.

    Args:
        outcomes: of both sides, or of one.
        ours: what samebits's side is called.
    """
    rows = [HEAD]
    for title in dict.fromkeys(outcome.title for outcome in outcomes):
        of = [outcome for outcome in outcomes if outcome.title == title]
        mine, theirs = ([one for one in of if (one.side == ours) is is_ours] for is_ours in (True, False))
        rows.append(f"| {' | '.join([title, of[0].goal, *_cells(mine), *_cells(theirs)])} |")
    return "\n".join(rows)


def _cells(of: Sequence[Outcome]) -> list[str]:
    if not of:
        return [""] * 4
    said = of[0].trouble or _short(of[0].said) or "nothing"
    return [said, _each(map(_named, of)), _each(_seconds(one.said_after_s) for one in of), _each(map(_then, of))]


def _each(texts: Iterable[str]) -> str:
    """`5.1 s / 5.3 s`; once where all are equal."""
    found = list(texts)
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def _named(outcome: Outcome) -> str:
    if not outcome.names_rank:
        return "nobody" if outcome.said else ""
    return "rank, line" if outcome.names_line else "rank"


def _then(outcome: Outcome) -> str:
    """What became of the run; what is as it should be is not told."""
    left = [f"leaves {', '.join(outcome.left)}"] if outcome.left else []
    if outcome.same_bits is None:
        end = f"ends with {outcome.exit_code}" if outcome.exit_code is not None else "still waits after 40 s"
        return "; ".join([end, *left])
    told = [f"goes on after {_seconds(outcome.recovered_after_s)}"]
    told += [f"{outcome.lost_steps} steps computed again"] if outcome.lost_steps else []
    told += ["samples NOT each once"] if not outcome.samples_once else []
    told += ["OTHER BITS"] if not outcome.same_bits else []
    return "; ".join([*told, *left])


def _short(text: str) -> str:
    """The first clause and the last one, which say who and where; without a logger's time and place."""
    text = re.sub(r"^[EWI]\d{4} \S+ \d+ \S+\] ", "", text)
    text = " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
    clauses = text.split("; ")
    text = text if len(clauses) < 3 else f"{clauses[0]}; …; {clauses[-1]}"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
