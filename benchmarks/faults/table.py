"""Outcomes as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.faults.outcome import Outcome

HEAD = (
    "| fault | goal | ranks | said | named | said after | goes on after | lost steps | samples | bits | exit | left |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)
LONGEST = 150


def line(outcome: Outcome) -> str:
    """One row."""
    said = outcome.trouble or _short(outcome.said) or "nothing"
    named = "rank and line" if outcome.names_rank and outcome.names_line else "rank" if outcome.names_rank else "no"
    cells = (
        outcome.title,
        outcome.goal,
        str(outcome.ranks),
        said,
        named,
        _seconds(outcome.said_after_s),
        _seconds(outcome.recovered_after_s),
        _number(outcome.lost_steps),
        _yes(outcome.samples_once, "each once", "NOT each once"),
        _yes(outcome.same_bits, "same", "OTHER"),
        str(outcome.exit_code) if outcome.exit_code is not None else "did not end",
        ", ".join(outcome.left) or "nothing",
    )
    return f"| {' | '.join(cells)} |"


def table(outcomes: Sequence[Outcome]) -> str:
    """All rows of one side."""
    return "\n".join([*HEAD, *map(line, outcomes)])


def _short(text: str) -> str:
    text = " ".join(text.replace("|", "\\|").split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _yes(value: bool | None, yes: str, no: str) -> str:
    return "" if value is None else yes if value else no
