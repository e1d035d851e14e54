"""What README and the guide may say of GPUs: made from the newest record in `benchmarks/gpu/`, and from nothing else.

`python -m benchmarks.gpu_day.claim` writes both; a test compares them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.outcome import State
from benchmarks.gpu_day.record import FOLDER
from benchmarks.gpu_day.tasks import ROOT

BEGIN, END = "<!-- gpus: made by benchmarks.gpu_day.claim -->", "<!-- gpus: end -->"
README, GUIDE = ROOT / "README.md", ROOT / "docs/guide/gpus.md"
NEVER = "The CUDA code is tested on GPUs that only pretend, in host memory; no line of it has run on a real one yet"
PRECISIONS = {"32": "float32", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed"}


def newest(folder: Path = FOLDER) -> dict[str, Any]:
    """The newest record, with what only earlier ones of its day and hardware have tried; empty without any."""
    found = sorted((json.loads(file.read_text()) for file in folder.glob("*.json")), key=lambda one: str(one["date"]))
    return together(found) if found else {}


def together(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last of some records, with the outcomes of those of its day and hardware: of each task the last that was begun."""
    last = records[-1]
    same = [
        one
        for one in records
        if one["date"][:10] == last["date"][:10] and one["hardware"]["gpus"] == last["hardware"]["gpus"]
    ]
    tasks: dict[tuple[str, str], Any] = {}
    for outcome in (outcome for one in same for outcome in one["outcomes"]):
        name = outcome["block"], outcome["task"]
        if name not in tasks or outcome["state"] not in (State.NO_TIME, State.NOT_HERE):
            tasks[name] = outcome
    commits = ", ".join(dict.fromkeys(one["commit"] for one in same))
    return {**last, "commit": commits, "outcomes": [*tasks.values()]}


def sentence(told: Mapping[str, Any], guide: str) -> str:
    """For a cell of README's table: the bits, where and when."""
    if not told:
        return f"{NEVER} ([what that means]({guide}))."
    return (
        f"tried on {_gpus(told)} (torch {told['hardware']['torch']}, {told['date'][:10]}): {_bits(told)} "
        f"([what ran, what failed, what that proves]({guide}))"
    )


def _gpus(told: Mapping[str, Any]) -> str:
    names = told["hardware"]["gpus"]
    return f"one {names[0]}" if len(names) == 1 else f"{len(names)} x {', '.join(dict.fromkeys(names))}"


def _bits(told: Mapping[str, Any]) -> str:
    tried = [one for one in told["outcomes"] if one["block"] == "bits" and one["figures"].get("ranks")]
    same = [one for one in tried if one["state"] == State.OK]
    if not tried or len(same) < len(tried):
        return f"{len(same)} of {len(tried)} proofs of the same bits held"
    ranks = sorted({rank for one in same for rank in one["figures"]["ranks"]})
    kinds = [PRECISIONS[kind] for kind in PRECISIONS if any(one["task"].endswith(f" {kind}") for one in same)]
    share = " that share it" if len(told["hardware"]["gpus"]) < max(ranks) else ""
    return f"the same bits on {_and(ranks)} ranks{share}, in {_and(kinds)}"


def table(told: Mapping[str, Any]) -> str:
    """For the guide: every task that ran, with what it said."""
    if not told:
        return f"{NEVER}."
    hardware = told["hardware"]
    head = f"{told['date']}, {_gpus(told)}, torch {hardware['torch']}, Python {hardware['python']}, commits {told['commit']}:"
    rows = ["| | task | | what it says |", "|---|---|---|---|"]
    last = ""
    for one in _in_order(told["outcomes"]):
        if one["state"] in (State.NO_TIME, State.NOT_HERE):
            continue
        block = "" if one["block"] == last else one["block"]
        last = one["block"]
        rows.append(f"| {block} | {one['task']} | {one['state']} | {shown(one['says'])} |")
    left_out = [one["task"] for one in told["outcomes"] if one["state"] in (State.NO_TIME, State.NOT_HERE)]
    more = f"\n\nNot tried then: {', '.join(left_out)}." if left_out else ""
    return f"{head}\n\n" + "\n".join(rows) + more


def _in_order(outcomes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Blocks in the order of their first task; beside each other they ended in any order."""
    blocks = list(dict.fromkeys(one["block"] for one in outcomes))
    return sorted(outcomes, key=lambda one: blocks.index(one["block"]))


def shown(says: str, most: int = 150) -> str:
    """In a cell of a table."""
    says = " ".join(says.split()).replace("|", "/").replace("<", "&lt;")
    return says if len(says) <= most else f"{says[:most].rsplit(' ', 1)[0]} ..."


def _and(words: Sequence[Any]) -> str:
    told = [str(word) for word in words]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def put_in(text: str, claim: str) -> str:
    """`text` with the claim between the marks, of which it must have one pair; lines of their own stay so.

    Raises:
        ValueError: it has not.
    """
    found = re.subn(
        f"{re.escape(BEGIN)}(\\s*).*?(\\s*){re.escape(END)}",
        lambda marks: f"{BEGIN}{marks[1]}{claim}{marks[2]}{END}",
        text,
        flags=re.DOTALL,
    )
    if found[1] != 1:
        raise ValueError(f"there must be one pair of the marks {BEGIN} and {END}")
    return found[0]


def pages() -> dict[Path, str]:
    """Each page as it should be."""
    told = newest()
    return {
        README: put_in(README.read_text(), sentence(told, "docs/guide/gpus.md")),
        GUIDE: put_in(GUIDE.read_text(), table(told)),
    }


def main() -> int:
    """Write both pages."""
    for page, text in pages().items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
