"""What `verify` found as Markdown, for a CI's page about a step (`--summary "$GITHUB_STEP_SUMMARY"`)."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from samebits.errors import UsageError
from samebits.machine.regular_file import other_kind

COLUMNS = 100


def check_summary(path: str | None) -> None:
    """Raise `UsageError` for a file that could not be appended to at the end."""
    if path is None:
        return
    file = Path(path)
    is_there = file.exists()
    if not file.parent.is_dir() or other_kind(file) or not os.access(file if is_there else file.parent, os.W_OK):
        raise UsageError(
            f"--summary {path} cannot be written.", "Choose a file in a folder that exists and is writable."
        )


def append_summary(path: str | None, program: str, show: Callable[[Console], None]) -> None:
    """Append what `show` prints; a CI's steps share one file."""
    if path is None:
        return
    text = io.StringIO()
    show(Console(file=text, width=COLUMNS, color_system=None, force_terminal=False))
    verdict, _, rest = text.getvalue().rstrip().partition("\n")
    # Four backticks: what a script printed may hold three.
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"### samebits verify `{program}`\n\n**{verdict.strip()}**\n\n````text\n{rest}\n````\n")
