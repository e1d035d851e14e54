"""What the commands about states print: the values that `--json` shows, as lines, tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from samebits.launcher.states.description import COMPLETE, Json
from samebits.launcher.watch.table import show_table, table
from samebits.machine.visible import visible

GOOD, BAD = "green", "bold red"
MOST_NAMES = 3
MOST_ROWS = 8
"""Epochs that a table has; --json has all."""
WIDEST_VALUE = 40
"""Characters of a value that differs; --json has all of it."""


def say(console: Console, text: str = "", style: str = "") -> None:
    """Print a line or a sentence, broken by the terminal alone."""
    console.print(Text(visible(text), style=style), soft_wrap=True)


def text_of(value: Any, name: str = "") -> str:
    """A value for people: `12.0 GiB` where the `name` says that it is a size, a dash for what is unknown."""
    if value is None or isinstance(value, bool):
        return "–" if value is None else "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{_words(key)} {text_of(one, key)}" for key, one in value.items() if one is not None) or "–"
    if isinstance(value, list):
        return (
            ", ".join(" ".join(map(text_of, one)) if isinstance(one, list) else text_of(one) for one in value) or "none"
        )
    if name == "size_bytes":
        return size_text(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.9g}" if isinstance(value, float) else value


def size_text(size: int) -> str:
    """`840 B`, `1.6 KiB`, `12.0 GiB`."""
    if size < 1024:
        return f"{size} B"
    amount, unit = size / 1024, 0
    while amount >= 1023.95 and unit < 3:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {'KMGT'[unit]}iB"


def _words(name: str) -> str:
    return name.removeprefix("num_").removesuffix("_bytes").replace("_", " ")


def _show(console: Console, rows: Sequence[Json], first: str = "") -> None:
    """A table with a column for each key of the rows, the numbers at the right, and an empty line; nothing without rows."""
    if not rows:
        return
    numbers = [_words(key) for key, value in rows[0].items() if isinstance(value, int) and not isinstance(value, bool)]
    drawn = table(*(visible(_words(key)) for key in rows[0]), right=numbers)
    if first:
        drawn.columns[0].header = first
    for row in rows:
        cells = (value if isinstance(value, Text) else visible(text_of(value, key)) for key, value in row.items())
        drawn.add_row(*cells)
    show_table(drawn, console)
    say(console)


def show_list(rows: Sequence[Json], console: Console) -> None:
    """A row for each state, and what is wrong below."""
    several = len({row["run"] for row in rows}) > 1
    _show(console, [({"run": row["run"] or None} if several else {}) | _listed(row) for row in rows])
    for row in rows:
        if row["problem"]:
            say(console, row["problem"], BAD)
        if row["not_finite"]:
            say(console, f"{row['path']}: {row['not_finite']} is not finite", BAD)
    say(console, "complete: each file is there with its size. `samebits checkpoint verify` reads every byte.", "dim")


def _listed(row: Json) -> Json:
    files = f"{row['files']}, not finite" if row["not_finite"] else row["files"]
    done = row["epochs"]
    return {
        "state": Path(row["path"]).name or row["path"],
        "step": row["step"],
        "epoch": None if done is None else f"in {done + 1}" if row["inside_epoch"] else f"after {done}",
        "saved": row["saved"] and datetime.fromisoformat(row["saved"]).strftime("%Y-%m-%d %H:%M:%S"),
        "size_bytes": row["size_bytes"],
        "hash": row["sha256"] and row["sha256"][:12],
        "files": Text(files, style=GOOD if files == COMPLETE else BAD),
    }


def show_description(record: Json, console: Console) -> None:
    """A line for each value, then a table for each list."""
    drawn = table("", "")
    drawn.show_header = False
    listed = {
        key: value for key, value in record.items() if value and isinstance(value, list) and isinstance(value[0], dict)
    }
    for key, value in record.items():
        if key not in listed and value:
            drawn.add_row(Text(_words(key), style="bold"), visible(text_of(value, key)))
    show_table(drawn, console)
    say(console)
    for key, rows in listed.items():
        _show(console, [dict(_flat(row)) for row in rows[-MOST_ROWS:]], key.removesuffix("s"))
    say(console, "Sizes and headers fit. `samebits checkpoint verify` reads every byte.", "dim")


def _flat(row: Json) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from value.items()
        else:
            yield key, value


def show_examined(examined: Sequence[Json], console: Console) -> None:
    """A row for each state, then each damaged file."""
    rows = []
    for one in examined:
        verdict = ("whole" if one["whole"] else "damaged") + ", not finite" * bool(one["not_finite"])
        sizes = {"state": one["path"], "files": one["files"] or None, "size_bytes": one["size_bytes"] or None}
        rows.append({**sizes, "verdict": Text(verdict, style=GOOD if verdict == "whole" else BAD)})
    _show(console, rows)
    for one in examined:
        for damage in one["damages"]:
            say(console, damage["problem"], BAD)
        if one["others"]:
            names = _first(one["others"])
            say(console, f"{one['path']} holds other files too ({names}), so samebits will not replace or remove it.")


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def show_differences(found: Json, console: Console) -> None:
    """Tensors, values, and who wrote the two; last, one sentence."""
    tensors, values = found["tensors"], found["values"]
    _show(console, tensors)
    for title, rows in (("value", values), ("written by", found["written"])):
        _show(console, [{**one, "left": _cut(one["left"]), "right": _cut(one["right"])} for one in rows], title)
    of = f"{found['num_tensors']:,} tensors, {{}}{found['num_values']:,} values"
    if found["same"]:
        say(console, f"same bits: {of.format('')}", GOOD)
    else:
        say(console, f"different: {len(tensors):,} of {of.format(f'{len(values):,} of ')}", BAD)


def _cut(text: str) -> str | None:
    return (text if len(text) <= WIDEST_VALUE else f"{text[: WIDEST_VALUE - 1]}…") or None
