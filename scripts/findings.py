"""The pages in docs/findings/, one for each finding, from the code: `python scripts/findings.py` writes them.

A test compares them with what this makes.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))  # the code beside these pages, whatever is installed

from lockstep.findings.catalogue import FINDINGS, Finding  # noqa: E402

FOLDER = ROOT / "docs" / "findings"
ABOUT = """\
A finding is a kind of trouble that has a name. When a run meets one, the terminal says it in one line, `lockstep diagnose RUN`
says why and what to do, and the run's folder keeps it in `findings.jsonl`. Each one is provoked by a test.
"""


def pages() -> dict[str, str]:
    """The text of each page, by its file's name."""
    return {"index.md": _index(), **{f"{name}.md": _page(finding) for name, finding in FINDINGS.items()}}


def _index() -> str:
    rows = [f"| [{name}]({name}.md) | {finding.title} |" for name, finding in FINDINGS.items()]
    return "\n".join(["# Findings", "", ABOUT, "| name | what it is |", "|---|---|", *rows, ""])


def _page(finding: Finding) -> str:
    steps = [f"{number}. {step}" for number, step in enumerate(finding.what_to_do, 1)]
    parts = [
        f"# {finding.title}",
        f"`{finding.name}`",
        "## What is seen",
        f"```text\n{finding.example.rstrip()}\n```",
        finding.seen,
        "## Why",
        finding.why,
        "## What to do",
        "\n".join(steps),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the pages; those of findings that are gone are removed."""
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
