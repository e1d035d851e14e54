"""What a loop over steps leaves behind for the script is found in its source."""

import ast

import pytest

from lockstep.run.script.left import left_by

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
