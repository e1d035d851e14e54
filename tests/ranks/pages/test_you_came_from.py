"""The page "You came from": each trouble is shown by plain torch, and ended by the command behind it, as the page prints both.

A block of the page has commands and lines that they print, in their order; others may come between. `...` stands for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import ROOT
from tests.support.launching import LIMIT_S, start
from tests.support.promises import promise

pytestmark = [pytest.mark.ranks, pytest.mark.every_row]

PAGE = ROOT / "docs/you-came-from.md"
SCRIPTS = ROOT / "examples/came_from"
ALWAYS = {"Every epoch in the same order", "Samples that are counted twice", "A checkpoint in the middle of an epoch"}
"""Sections that are tried in every test run; the others by the thorough tests."""
ENDS_WITH_1 = "nobody_named.py"
"""What ends a run that can't go on."""


def sections() -> dict[str, list[tuple[str, list[str]]]]:
    """What each section runs, of one command or two, with the lines that it prints."""
    _, *parts = PAGE.read_text().split("\n## ")
    found = {}
    for part in parts:
        blocks = re.findall(r"^```console\n((?:\$ (?:[^\n]*\\\n)*[^\n]*\n)+)(.*?)^```", part, re.MULTILINE | re.DOTALL)
        found[part.partition("\n")[0]] = [
            (re.sub(r"^\$ ", "", commands, flags=re.MULTILINE).strip(), shown.splitlines())
            for commands, shown in blocks
        ]
    return found


def printed_by(command: str, place: Path) -> tuple[int, list[str]]:
    """The exit code of the last command in a folder that has the examples, and all lines that were printed."""
    (place / "examples").symlink_to(ROOT / "examples")
    if command.startswith("samebits run ") and "\n" not in command:
        ended = start(place, *shlex.split(command)[2:]).finish()
        return ended.code, (ended.out + ended.err).splitlines()
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")} | {"PATH": binaries}
    command = command.replace("samebits ", "python -m samebits ")  # this tree's, wherever it is installed
    done = subprocess.run(
        command,
        shell=True,
        cwd=place,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def missing(shown: list[str], lines: list[str]) -> list[str]:
    """The shown lines that were not printed, or not in this order."""
    rest, found = iter(lines), []
    for line in shown:
        pattern = re.compile(".*".join(re.escape(part) for part in line.strip().split("...")))
        if not any(pattern.fullmatch(one.strip()) for one in rest):
            found.append(line)
            rest = iter(lines)
    return found


@pytest.mark.parametrize(
    "section", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.thorough) for name in sections()]
)
@promise(
    "pages",
    "Eight public threads: plain torch shows the trouble of each, and the command behind it ends it, as the page prints both",
)
def test_a_trouble_is_shown_and_ended(section: str, tmp_path: Path) -> None:
    for number, (command, shown) in enumerate(sections()[section]):
        place = tmp_path / str(number)
        place.mkdir()
        code, lines = printed_by(command, place)
        assert missing(shown, lines) == [], (command, lines)
        assert number == 0 or code == (ENDS_WITH_1 in command), (command, lines)


def test_the_page_has_eight_threads_each_with_two_commands_and_a_row_and_every_script() -> None:
    found, text = sections(), PAGE.read_text()
    assert [len(blocks) for blocks in found.values()] == [2] * 8
    assert set(found) >= ALWAYS
    rows = text.partition("\n## ")[0]
    assert [name for name in found if f"(#{name.lower().replace(',', '').replace(' ', '-')})" not in rows] == []
    assert [
        part for part in text.split("\n## ")[1:] if not re.search(r"\]\(https://github\.com/\S+/issues/\d+\)", part)
    ] == []
    assert [script.name for script in SCRIPTS.glob("*.py") if f"examples/came_from/{script.name}" not in text] == []
