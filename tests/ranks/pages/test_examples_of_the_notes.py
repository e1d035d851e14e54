"""Every example in examples/notes says in its docstring how it is started and what it prints; here that must hold.

A block of lines that begin with `$` is a list of commands; the lines after it are what each of them prints. Ranks print
in any order, so lines are compared as a set; where a line is expected several times, they are counted. `...` stands for
anything, but for the same thing in every command of the block.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.launching import LIMIT_S, start
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[3]
SLOW = {
    "launchers",
    "claims",
    "devices",
    "gloo_spawn_checkpoint",
    "spawn_samebits",
    "hogwild",
    "hogwild_samebits",
    "digits_with_steplr",
    "save_and_load",
}
"""Started by the thorough tests only: other tests show the same."""
EXAMPLES = sorted((ROOT / "examples" / "notes").glob("*.py"))


def said_in(path: Path) -> tuple[list[str], list[str]]:
    """The commands of a docstring and the lines that they print."""
    lines = (ast.get_docstring(ast.parse(path.read_text()), clean=False) or "").splitlines()
    commands = [line.strip()[2:] for line in lines if line.startswith("    $ ")]
    printed = [line[4:] for line in lines if line.startswith("    ") and not line.startswith("    $ ")]
    return commands, printed


def printed_by(command: str, place: Path) -> list[str]:
    """What the ranks printed, without the prefix that tells the ranks apart."""
    if command.startswith("samebits run "):
        ended = start(place, *shlex.split(command)[2:]).finish()
        return lines_of(command, ended.code, ended.out, ended.err)
    binaries = Path(sys.executable).parent
    variables = {
        name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "PYTHONUNBUFFERED")
    }
    variables |= {"PATH": f"{binaries}:{os.environ['PATH']}"}
    command = re.sub(r"\bsamebits run", "python -m samebits run", command)  # this tree's, wherever it is installed
    done = subprocess.run(
        command, shell=True, cwd=place, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return lines_of(command, done.returncode, done.stdout, done.stderr)


def lines_of(command: str, code: int, out: str, err: str) -> list[str]:
    assert code == 0, f"{command}\n{out}\n{err}"
    others = [line for line in err.splitlines() if line.startswith("[rank ")]
    return [re.sub(r"^\[rank \d+\] ", "", line) for line in [*out.splitlines(), *others] if line]


def unlike(expected: list[str], printed: list[str]) -> tuple[list[str], list[str]]:
    """The expected lines that are missing, and the printed ones that nobody expected."""
    patterns = {line: re.compile(".*".join(re.escape(part) for part in line.split("..."))) for line in expected}
    missing = [line for line, pattern in patterns.items() if not any(pattern.fullmatch(one) for one in printed)]
    return missing, [one for one in printed if not any(pattern.fullmatch(one) for pattern in patterns.values())]


@promise(
    "pages",
    "Examples, quick starts and the migration page run, print what they say, and have the same bits on "
    "one rank and on two",
    also=[
        "test_the_quick_start_has_the_same_bits_on_one_rank_and_on_two_and_its_file_loads",
        "test_the_migration_page_quotes_its_files",
    ],
)
@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem not in SLOW], ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_says(path: Path, tmp_path: Path) -> None:
    check(path, tmp_path, slice(1))


@pytest.mark.thorough
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_command_of_an_example_prints_the_same(path: Path, tmp_path: Path) -> None:
    check(path, tmp_path, slice(None))


def check(path: Path, tmp_path: Path, which: slice) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands, expected = said_in(path)
    assert commands
    assert expected
    commands = commands[which]
    outputs = [printed_by(command, tmp_path) for command in commands]
    assert [unlike(expected, printed) for printed in outputs] == [([], [])] * len(commands)
    assert all(set(printed) == set(outputs[0]) for printed in outputs), "one block of commands, one output"
    if len(set(expected)) < len(expected):
        assert all(Counter(printed) == Counter(expected) for printed in outputs)


def test_there_is_an_example_for_every_listing_of_the_notes() -> None:
    page = (ROOT / "docs" / "from-the-notes.md").read_text()
    assert [path.name for path in EXAMPLES if f"examples/notes/{path.name}" not in page] == []
