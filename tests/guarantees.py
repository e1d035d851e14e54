"""Makes the tables of docs/guarantees.md from the promises that stand at tests: `python -m tests.guarantees`, or `--check`.

Tests are read, not imported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.promises import MOST_CHARACTERS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guarantees.md"
TABLE = re.compile(r"<!-- promises: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
PROMISE = "promise"


@dataclass(frozen=True)
class Promise:
    """One row of a table."""

    section: str
    sentence: str
    tests: tuple[str, ...]
    """`file::name`."""

    @property
    def row(self) -> str:
        files = dict.fromkeys(test.partition("::")[0] for test in self.tests)
        return f"| {self.sentence} | {' · '.join(f'`{file}`' for file in files)} |"


def tests_by_name() -> dict[str, str]:
    """Every test of the project as pytest names it, by its name, and by its file's too; files of tests. Without names that come twice."""
    found: dict[str, str] = {}
    twice: set[str] = set()
    for path, tree in _trees():
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        found[path.name] = str(path.relative_to(ROOT))
        for name in (name for name in names if name.startswith("test_")):
            twice |= {name} & found.keys()
            found[name] = found[f"{path.name}::{name}"] = f"{path.relative_to(ROOT)}::{name}"
    return {name: test for name, test in found.items() if name not in twice}


def promises() -> list[Promise]:
    """All of them, in the order of files and lines. Raises ValueError for one that says too much, or names no test."""
    known = tests_by_name()
    found = [one for path, tree in _trees() for one in _of_file(path, tree, known)]
    for one in found:
        if len(one.sentence) > MOST_CHARACTERS:
            raise ValueError(f"{len(one.sentence)} characters, at most {MOST_CHARACTERS}: {one.sentence}")
    return found


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        yield path, ast.parse(path.read_text())


def _of_file(path: Path, tree: ast.Module, known: dict[str, str]) -> Iterator[Promise]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == PROMISE:
                section, sentence = (ast.literal_eval(argument) for argument in call.args)
                also = next((ast.literal_eval(one.value) for one in call.keywords if one.arg == "also"), ())
                if missing := [name for name in also if name not in known]:
                    raise ValueError(f"{path.name}::{node.name} names tests that are not there, or twice: {missing}")
                own = f"{path.relative_to(ROOT)}::{node.name}"
                yield Promise(section, sentence, (own, *(known[name] for name in also)))


def page(text: str) -> str:
    """The page with its tables as the tests say them. Raises ValueError where one of both has a section too many."""
    by_section: dict[str, list[Promise]] = {}
    for one in promises():
        by_section.setdefault(one.section, []).append(one)
    sections = TABLE.findall(text)
    if sorted(sections) != sorted(by_section):
        raise ValueError(f"sections of the page and of tests differ: {sorted({*sections} ^ {*by_section})}")

    def table(found: re.Match[str]) -> str:
        # What is checked at the top of the tests comes first, then what most tests check.
        ordered = sorted(by_section[found[1]], key=lambda one: (one.tests[0].count("/"), -len(one.tests)))
        rows = "\n".join(one.row for one in ordered)
        return f"<!-- promises: {found[1]} -->\n| promise | checked in |\n|---|---|\n{rows}\n<!-- end -->"

    return TABLE.sub(table, text)


def main() -> None:
    """Write the page, or say that it is stale."""
    text = PAGE.read_text()
    made = page(text)
    if "--check" not in sys.argv:
        PAGE.write_text(made)
    elif made != text:
        sys.exit("docs/guarantees.md is stale: python -m tests.guarantees")


if __name__ == "__main__":
    main()
