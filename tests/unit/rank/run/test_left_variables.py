"""What a loop over steps leaves behind for the script is found in its source."""

import ast
import sys

import pytest

from samebits.rank.checks.script.read_after_loop import left_by, left_variables, set_variable

LOOP = "for step in steps:\n    for x, y in step:\n        pass\n    loss = 1\n"


@pytest.mark.parametrize(
    ("behind", "left"),
    [
        ("print(step.loss)", ["step"]),
        ("for x, y in others:\n    f(x, y)", []),
        ("loss = loss + 1", ["loss"]),
        ("loss += 1", ["loss"]),
        ("loss: int = 2\nprint(loss)", []),
        ("[x for x in others]", []),
        ("(y := 3)\nprint(y)", []),
        ("for x in x:\n    pass", ["x"]),
        ("print(other)", []),
    ],
)
def test_names_that_are_read_first_behind_the_loop_are_left(behind, left):
    tree = ast.parse(LOOP + behind)
    loop = next(node for node in ast.walk(tree) if isinstance(node, ast.For))
    assert left_by(loop, tree) == left


def test_what_a_loop_binds_by_a_definition_or_an_import_is_left():
    tree = ast.parse("for step in steps:\n    import a.b\n    def f(): pass\n    class C: pass\nprint(a, f, C)")
    assert left_by(tree.body[0], tree) == ["a", "f", "C"]


def test_the_innermost_loop_that_asks_for_its_next_turn_is_looked_at(monkeypatch):
    seen = []

    def steps():
        yield 1
        seen.extend(left_variables())

    monkeypatch.setattr(
        "samebits.rank.checks.script.read_after_loop.script_frames", lambda: iter([sys._getframe(2), sys._getframe(3)])
    )
    for _ in range(1):
        for step in steps():
            loss = step
        print(step, loss)
    [(frame, left)] = seen
    assert (frame, left.names, left.own) == (sys._getframe(), ["step", "loss"], {"step"})


GLOBAL = 0


def test_a_variable_is_set_where_the_code_of_its_frame_reads_it():
    cell = 0

    def function(local):
        nonlocal cell
        for _turn in ():
            unbound = local
        for name in ("local", "cell", "GLOBAL", "unbound"):
            set_variable(sys._getframe(), name, 7)
        return local, cell, GLOBAL, unbound

    assert function(0) == (7, 7, 7, 7)
    assert cell == 7
