"""How big the package is: printed, and held."""

import ast
from dataclasses import fields
from pathlib import Path

from tests.architecture.parsed import nodes

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lockstep"
MOST_LINES, MOST_FILES = 72_500, 460
"""Of the package. Who needs more says why, where the number is raised; it is meant to fall."""


def test_the_package_does_not_grow_unsaid(capsys):
    files = list(SOURCE.rglob("*.py"))
    texts = [path.read_text() for path in files]
    lines = sum(len(text.splitlines()) for text in texts)
    imports = sum(
        node.end_lineno - node.lineno + 1
        for text in texts
        for node in nodes(text)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    remarks = sum(line.strip().startswith("#") for text in texts for line in text.splitlines())
    tops = [path for path in SOURCE.iterdir() if path.name != "__pycache__"]
    folders = sum(path.is_dir() for path in tops)
    tests = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    with capsys.disabled():
        print(
            f"\nsrc/lockstep: {lines} lines (most {MOST_LINES}) in {len(files)} files (most {MOST_FILES}), "
            f"{folders} folders and {sum(path.suffix == '.py' for path in tops)} files at the top, "
            f"{100 * imports / lines:.1f} % imports, a line of comment in {lines // max(remarks, 1)}; tests: {tests} lines"
        )
    assert folders <= 9, "the first folder says the process"
    assert sum(path.suffix == ".py" for path in tops) <= 9
    reason = "Take something out, or raise the number in this test and say in the commit what needs it."
    assert lines <= MOST_LINES, f"the package has {lines} lines. {reason}"
    assert len(files) <= MOST_FILES, f"the package has {len(files)} files. {reason}"


def test_the_state_of_a_loop_and_a_launch_request_stay_in_parts():
    from lockstep.launcher.request import LaunchRequest
    from lockstep.rank.run.loop_state import LoopState

    assert len(fields(LoopState)) <= 20
    assert len(fields(LaunchRequest)) <= 12
