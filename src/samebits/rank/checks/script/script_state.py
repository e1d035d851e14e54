"""What a script keeps itself, from its source: a closed list, decided once, at the first step.

What the loop reads, calls or iterates and did not make in this turn must be prepared, tracked, in `run.state`, immutable, a
plain value that the loop only reads, or something that decides nothing. Anything else is named once, with its line and what
to write. A name blocks nothing: it labels the bits of a run that resumed without it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import nn

from samebits.rank.checks.script.calls import fills
from samebits.rank.checks.script.found import Found
from samebits.rank.checks.script.objects import NEW
from samebits.rank.checks.script.source import functions_in, loops_around, tree
from samebits.rank.checks.script.turn import Turn
from samebits.rank.checks.script.values import Place, Scope, Seen
from samebits.rank.checks.script_objects import modules_of_the_script, parts_of, script_frames
from samebits.rank.checks.variables import Named
from samebits.rank.run.loop_state import LoopState

NOT_READ = Named("what the script keeps, whose source is too much to read", "", "keep it in run.state", "hidden")


def named_in(loop_state: LoopState) -> list[Named]:
    """What the script around the caller keeps itself, with its lines and what to write; nothing of it blocks anything."""
    modules = [module for model in loop_state.prepared.models for module in model.modules()]
    # Buffers that are not persistent are in no state, although their module is.
    unsaved = {id(one._buffers[name]) for one in modules for name in one._non_persistent_buffers_set}  # noqa: SLF001
    tracked = [one for one in loop_state.prepared.tracked.values() if isinstance(one, nn.Module)]
    known = [loop_state.values, *parts_of([*loop_state.prepared.models, *tracked], loop_state.known)]
    kept = [part for value in vars(loop_state.values).values() for part in _contained(value)]
    found = Found({id(one) for one in [*known, *kept]} - unsaved)
    try:
        for frame in script_frames():
            _in(frame, found)
    except Exception:  # noqa: BLE001 - what only labels never ends a run, nor holds it up
        return [*found.names(), NOT_READ]
    return found.names()


def _contained(value: Any) -> Iterator[Any]:
    """A value of `run.state`, and what is in it."""
    yield value
    if isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _contained(one)


def _in(frame: FrameType, found: Found) -> None:
    """The loops of one running function around the line where it is."""
    code, line = frame.f_code, frame.f_lineno
    if code.co_filename == "<string>" and any(name.startswith("multiprocessing.") for name in code.co_names):
        # It is what multiprocessing runs a child with.
        return
    nodes: list[Any] = [tree(code.co_filename)]
    local, cells = frozenset[str](), dict[str, Any]()
    if code.co_name != "<module>":
        nodes = functions_in(code.co_filename).get((code.co_name, code.co_firstlineno), [])
        shared = {*code.co_cellvars, *code.co_freevars}
        local, cells = frozenset(code.co_varnames), {name: frame.f_locals.get(name, NEW) for name in shared}
    if nodes and isinstance(nodes[0], ast.Lambda):
        # A lambda has no loop.
        return
    if not nodes or not nodes[0].body:
        found.name("hidden", code, Seen(code.co_name, code.co_filename, line))
        return
    scope = Scope(id(frame), local, frame.f_globals, frame.f_locals, cells, is_running=True)
    for loop, behind in loops_around(nodes[0].body, line):
        changing = frozenset[Place]()
        while more := Turn(found, changing=changing).follow(loop, behind, scope, code.co_filename):
            changing |= more


_UNCOUNTED = ("vector_to_parameters", "untyped_storage")


def may_write_uncounted() -> bool:
    """Whether the source of the script around the caller, or of modules beside it, has such writes."""
    files = {frame.f_code.co_filename for frame in script_frames()}
    files |= {str(module.__file__) for module in modules_of_the_script()}
    return any(writes_uncounted(tree(file)) for file in files)


def writes_uncounted(tree: ast.AST) -> bool:
    """Whether some statement may write to a tensor past its counter of writes: `p.data.mul_(2)`, `p.data = other`."""
    return any(_writes(node) for node in ast.walk(tree))


def _writes(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        if node.attr == "data":
            return isinstance(node.ctx, ast.Store)
        return node.attr in _UNCOUNTED or (fills(node.attr) and _is_data(node.value))
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store) and _is_data(node.value)
    if isinstance(node, ast.Name):
        return node.id in _UNCOUNTED
    return isinstance(node, ast.Assign) and _is_data(node.value)


def _is_data(node: ast.AST) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr == "data" and _last(node.value) != "utils"


def _last(node: ast.AST) -> str:
    """`c` of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
