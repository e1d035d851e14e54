"""What the tests of this folder read: each file is parsed once in a process, however many tests look at it."""

import ast
from functools import cache


@cache
def nodes(text: str) -> list[ast.AST]:
    """All nodes of a file's text, its module first."""
    return list(ast.walk(ast.parse(text)))
