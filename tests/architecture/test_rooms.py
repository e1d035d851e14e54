"""How big each room is, and that nothing in the package imports itself in a circle. import-linter holds the layers."""

import ast
from pathlib import Path

from tests.architecture.parsed import nodes

SOURCE = Path(__file__).parents[2] / "src" / "samebits"
MOST_LINES = {
    ".": 748,
    "bench": 1_319,
    "cli": 4_506,
    "integrations": 2_210,
    "launcher": 16_679,
    "machine": 2_789,
    "protocol": 7_790,
    "rank": 83,
    "rank/checkpoint": 6_846,
    "rank/checks": 1_679,
    "rank/data": 2_787,
    "rank/init": 1_176,
    "rank/look": 1_521,
    "rank/portable": 689,
    "rank/position": 2_808,
    "rank/process_group": 2_346,
    "rank/recording": 2_011,
    "rank/run": 3_749,
    "rank/start": 1_569,
    "rank/strategy": 11_319,
    "rank/transport": 3_858,
    "show": 1_564,
    "testing": 1_103,
    "verify": 7_279,
    "witness": 1_140,
}
"""Of each room. A number only falls; who needs more takes it from another room, and says why in the commit."""
SLACK = 60
"""A room that is smaller by more has a number to be lowered."""


def rooms():
    """The files of each room: of `rank/` its folders, else the folders of the package, and its files at the top."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).parts[:-1]
        found.setdefault("/".join(parts[: 2 if parts[:1] == ("rank",) else 1]) or ".", []).append(path)
    return found


def test_no_room_grows():
    lines = {room: sum(len(path.read_text().splitlines()) for path in paths) for room, paths in rooms().items()}
    assert lines.keys() == MOST_LINES.keys()
    assert not {room: (number, MOST_LINES[room]) for room, number in lines.items() if number > MOST_LINES[room]}
    assert not {room: number for room, number in lines.items() if number < MOST_LINES[room] - SLACK}, "lower them"


def test_every_room_has_tests_of_its_own():
    """`make room ROOM=rank/data` runs them. The files at the top are the public names."""
    tests = SOURCE.parents[1] / "tests"
    tested = {room for room in rooms() for kind in ("unit", "ranks") if [*(tests / kind / room).rglob("test_*.py")]}
    assert rooms().keys() == tested


def imports(path, modules):
    """The modules of ours that a file imports, anywhere in it, types included."""
    found = set()
    for node in nodes(path.read_text()):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("samebits"):
            names = [f"{node.module}.{one.name}" for one in node.names]
            found.update(name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
    return found & modules.keys()


def test_no_files_import_each_other_in_a_circle():
    names = {path: ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in SOURCE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for path, name in names.items()}
    # The package's own file names all that is public, for type checkers.
    left = {name: imports(path, modules) - {name, "samebits"} for name, path in modules.items() if name != "samebits"}
    while ends := {name for name, known in left.items() if not known & left.keys()}:
        left = {name: known for name, known in left.items() if name not in ends}
    # What only leads into a circle goes too.
    while heads := left.keys() - set().union(*left.values()):
        left = {name: known for name, known in left.items() if name not in heads}
    assert not left
