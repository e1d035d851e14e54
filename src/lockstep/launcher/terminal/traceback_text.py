"""A traceback as a person reads it: their own frames, those of libraries in one line, the cause last. The log has every frame."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

_FRAME = re.compile(r'  File "([^"]+)", line ')
_OURS = re.escape(str(Path(__file__).parents[2].parent))  # a user's own folder may have our name
_FOREIGN = re.compile(rf"-packages/(torch)/|{_OURS}/(lockstep)/|<frozen (importlib)|/python[^/]*/(importlib)/")


def fold_libraries(text: str) -> str:
    """Put one line in place of frames of torch, importlib and lockstep that follow each other.

    Invariant: every other line stays, in order; so does everything where no frame would be left.
    """
    parts = _frames(text)
    if all(_library(part) for part in parts if _FRAME.match(part)):
        return text
    folded = []
    for is_foreign, group in groupby(parts, key=lambda part: bool(_library(part))):
        frames = list(group)
        folded += [_instead(frames)] if is_foreign else frames
    return "".join(folded)


def _frames(text: str) -> list[str]:
    """The text in its parts: a frame with the lines below it, or one other line."""
    parts: list[str] = []
    in_frame = False
    for line in text.splitlines(keepends=True):
        if _FRAME.match(line):
            in_frame = True
        elif in_frame and line.startswith("    "):
            parts[-1] += line
            continue
        else:
            in_frame = False
        parts.append(line)
    return parts


def _library(frame: str) -> str:
    """The library whose frame it is; empty for the user's and for what is no frame."""
    found = _FRAME.match(frame)
    inside = _FOREIGN.search(found[1]) if found is not None else None
    return next(filter(None, inside.groups())) if inside is not None else ""


def _instead(frames: list[str]) -> str:
    names = " and ".join(dict.fromkeys(map(_library, frames)))
    count = f"{len(frames)} frame{'s' if len(frames) > 1 else ''}"
    return f"  {count} inside {names}: the log has {'them' if len(frames) > 1 else 'it'}\n"
