"""Variables that a script carries from one step or epoch to the next by itself: a new rank would not have them.

Found in the source of the loops around the call: a name that the loop's body reads before it assigns it (a running sum,
the best value so far), an attribute that it assigns, a container that it fills. `run.state` and tracked objects are part
of what a new rank gets.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from inspect import CO_GENERATOR
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from lockstep.run.watch.flow import Flow, Readers, accumulated, names_in, writes_uncounted
from lockstep.run.watch.holdings import modules_of_the_script, script_frames

CONTAINERS = (list, dict, set, deque, bytearray, np.ndarray, Tensor)
_CODE = (FunctionType, BuiltinFunctionType, type, ModuleType)


def carried_variables(belongs: Callable[[Any], bool]) -> list[str]:
    """Names that the loops around the caller carry on; none where the source cannot be read.

    Args:
        belongs: whether an object is part of the state already.
    """
    found: dict[str, None] = {}
    for frame in script_frames():
        variables, file = {**vars(builtins), **frame.f_globals, **frame.f_locals}, frame.f_code.co_filename
        if loops := list(_loops(file, frame.f_lineno)):
            readers = _readers(file, frame.f_code)
            for loop in loops:
                found.update(dict.fromkeys(_carried(loop, variables, belongs, readers)))
    return list(found)


def left_variables() -> list[str]:
    """Names that the innermost loop around the caller assigns, and that the script reads behind that loop.

    A new rank that goes on from the loop's end has not been in it: `step` itself, the last `loss`.
    """
    found: dict[str, None] = {}
    for frame in script_frames():
        file, code = frame.f_code.co_filename, frame.f_code
        loops = [loop for loop in _loops(file, frame.f_lineno) if isinstance(loop, ast.For)]
        if loops:
            found.update(dict.fromkeys(_left_by(loops[-1], _scope(file, code), _readers(file, code))))
            if not code.co_flags & CO_GENERATOR:  # else its caller has the loop
                break
    return list(found)


def accumulated_names() -> set[str]:
    """Attributes and variables that the script, or a module beside it, makes from what they were: `self.n += 1`."""
    return set().union(*map(_accumulated_in, _files()))


def may_write_uncounted() -> bool:
    """Whether their source has writes to tensors that torch's counters do not tell of."""
    return any(writes_uncounted(_tree(file)) for file in _files())


def _files() -> set[str]:
    files = {frame.f_code.co_filename for frame in script_frames()}
    return files | {str(module.__file__) for module in modules_of_the_script()}


@functools.lru_cache(256)
def _accumulated_in(file: str) -> frozenset[str]:
    return frozenset(accumulated(_tree(file)))


def _left_by(loop: ast.For, scope: list[ast.stmt], readers: Readers) -> Iterator[str]:
    inside = {*names_in(loop.target), *(name for node in loop.body for name in names_in(node, ast.Store))}
    flow = Flow(readers, lambda _: True)
    flow.run(_behind(scope, loop) or [], frozenset())
    yield from (name for name in flow.read if name in inside)


def _behind(statements: list[ast.stmt], loop: ast.stmt) -> list[ast.stmt] | None:
    """The statements that follow on a loop that has come to its end, up to the end of the function or file."""
    for number, statement in enumerate(statements):
        rest = statements[number + 1 :]
        if statement is loop:
            return [*getattr(loop, "orelse", []), *rest]
        for field in ("body", "orelse", "handlers", "cases", "finalbody"):
            for block in _blocks(getattr(statement, field, [])):
                if (found := _behind(block, loop)) is not None:
                    last = getattr(statement, "finalbody", []) if field != "finalbody" else []
                    return [*found, *last, *rest]
    return None


def _blocks(field: list[Any]) -> list[list[ast.stmt]]:
    """The lists of statements of a part of a statement: one, or one of each handler or case."""
    return [one.body for one in field] if field and not isinstance(field[0], ast.stmt) else [field]


def _scope(file: str, code: CodeType) -> list[ast.stmt]:
    """The statements of a function, or of a whole file."""
    tree = _tree(file)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for function in functions:
        lines = {function.lineno, *(one.lineno for one in function.decorator_list)}
        if function.name == code.co_name and code.co_firstlineno in lines:
            return function.body
    return tree.body


@functools.lru_cache(64)
def _readers(file: str, code: CodeType) -> Readers:
    return Readers(_scope(file, code))


@functools.lru_cache(256)
def _tree(file: str) -> ast.Module:
    """The source as it is when it is read first: somebody may edit it while the script runs."""
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _loops(file: str, line: int) -> Iterator[ast.For | ast.While]:
    """The loops of a file around a line, outermost first, without those of functions that the line is not in."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, (ast.For, ast.While)) and node.lineno <= line <= (node.end_lineno or 0):
            yield node


def _carried(
    loop: ast.For | ast.While, variables: Mapping[str, Any], belongs: Callable[[Any], bool], readers: Readers
) -> Iterator[str]:
    flow = Flow(readers, lambda name: not isinstance(variables.get(name), _CODE))
    flow.turn(loop)
    for text, name in flow.written.items():
        if (name and not belongs(variables.get(name))) or text.startswith("globals()"):
            yield text
    yield from (name for name in flow.filled if isinstance(variables.get(name), CONTAINERS))
    yield from (name for name in flow.read if name in flow.stored and not isinstance(variables.get(name), _CODE))
