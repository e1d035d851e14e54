"""Outcomes as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.faults.outcome import Outcome

HEAD = (
    "| fault | goal | lockstep says | it names | after | goes on after | steps lost | samples, bits | leaves "
    "| torchrun + DDP says | it names | after | ends | leaves |\n" + "|---" * 14 + "|"
)
LONGEST = 110


def line(outcome: Outcome) -> str:
    """One outcome, for the terminal."""
    said = outcome.trouble or _short(outcome.said) or "nothing"
    goes_on = f"goes on after {_seconds(outcome.recovered_after_s)}, {_lost(outcome)} lost, {_sameness(outcome)}"
    end = goes_on if outcome.same_bits is not None else _end(outcome)
    return (
        f"{outcome.title}, {outcome.ranks} ranks: {_seconds(outcome.said_after_s)}: {said} [{_named(outcome)}]; "
        f"{end}; leaves {_left(outcome)}"
    )


def table(outcomes: Sequence[Outcome], ours: str) -> str:
    """One row for each fault: lockstep on each number of ranks, with ` / ` between them, and the other side.

    Args:
        outcomes: of both sides, or of one.
        ours: what lockstep's side is called.
    """
    rows = [HEAD]
    for title in dict.fromkeys(outcome.title for outcome in outcomes):
        of = [outcome for outcome in outcomes if outcome.title == title]
        mine, theirs = ([one for one in of if (one.side == ours) is is_ours] for is_ours in (True, False))
        cells = [title, of[0].goal, *_our_cells(mine), *_their_cells(theirs)]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _our_cells(of: Sequence[Outcome]) -> list[str]:
    if not of:
        return [""] * 7
    return [
        of[0].trouble or _short(of[0].said) or "nothing",
        _each(map(_named, of)),
        _each(_seconds(one.said_after_s) for one in of),
        _each(_seconds(one.recovered_after_s) or _end(one) for one in of),
        _each(map(_lost, of)),
        _each(map(_sameness, of)),
        _each(map(_left, of)),
    ]


def _their_cells(of: Sequence[Outcome]) -> list[str]:
    if not of:
        return [""] * 5
    return [
        _each(one.trouble or _short(one.said) or "nothing" for one in of),
        _each(map(_named, of)),
        _each(_seconds(one.said_after_s) for one in of),
        _each("goes on" if one.same_bits is not None else _end(one) for one in of),
        _each(map(_left, of)),
    ]


def _each(texts: Iterable[str]) -> str:
    """`5.1 s / 5.3 s`; once where all are equal."""
    found = list(texts)
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def _named(outcome: Outcome) -> str:
    if not outcome.names_rank:
        return "nobody" if outcome.said else ""
    return "rank, line" if outcome.names_line else "rank"


def _end(outcome: Outcome) -> str:
    return f"ends with {outcome.exit_code}" if outcome.exit_code is not None else "still there after 40 s"


def _lost(outcome: Outcome) -> str:
    return "" if outcome.lost_steps is None else str(outcome.lost_steps)


def _sameness(outcome: Outcome) -> str:
    if outcome.same_bits is None:
        return ""
    samples = "each once" if outcome.samples_once else "NOT each once"
    return f"{samples}, {'same' if outcome.same_bits else 'OTHER BITS'}"


def _left(outcome: Outcome) -> str:
    return ", ".join(outcome.left) or "nothing"


def _short(text: str) -> str:
    text = " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
