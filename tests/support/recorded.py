"""Records as runs write them, made here without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from samebits.protocol.record.lines import CONDITIONS, END, RECORD, START, STEP, VERSION, Chain, unlinked

CONDITIONS_HERE = {"torch": "2.9.0", "lanes": 4, "seed": 0, "script": "train.py", "files": {"train.py": "ab" * 32}}
START_HERE = {START: 0, "ranks": 4, "strategy": "ddp", "script": "train.py", "arguments": ["--lr", "0.1"]}


def body_of(step: int, **changed: Any) -> dict[str, Any]:
    """What stands of a step; another step has another loss and other samples."""
    body = {STEP: step, "epoch": 1, "ids": f"{step:012x}", "data": f"{step:016x}", "lanes": f"{step:08x}" * 4}
    return {**body, "lr": [0.1], "loss": [1 / step], **changed}


def lines_of(
    steps: Iterable[int],
    conditions: Mapping[str, Any] = CONDITIONS_HERE,
    changed: Mapping[int, Mapping[str, Any]] | None = None,
    end: str = "",
) -> list[bytes]:
    """The lines of a run of these steps.

    Args:
        steps: their numbers.
        conditions: under which.
        changed: by step, what is otherwise than `body_of` has it.
        end: the bits with which the script has ended.
    """
    chain, steps = Chain(), list(steps)
    first = [unlinked({RECORD: VERSION, "samebits": "0.1.0"}), unlinked(START_HERE)]
    linked = [chain.line({CONDITIONS: conditions, "after": steps[0] - 1 if steps else 0})]
    linked += [chain.line(body_of(step, **(changed or {}).get(step, {}))) for step in steps]
    return [*first, *linked, *([unlinked({END: steps[-1], "bits": end})] if end else [])]


def write_lines(path: Path, lines: Iterable[bytes]) -> Path:
    """A file of these lines; the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path
