"""What the source of one loop says of a name: whether each turn assigns it first, only adds to it, shows it, or reads it behind.

It is syntax alone: no value is known here and no function is followed.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from samebits.rank.look.flow import FUNCTIONS, SCOPES, Flow, Loop, own_names

ADDS = frozenset({
    "add", "add_", "append", "appendleft", "extend", "insert", "put", "record", "update", "write", "writerow",
})  # fmt: skip
"""Methods that only add to what they are called on, where nobody takes their result."""
SHOWS = frozenset({
    "add_figure", "add_histogram", "add_image", "add_scalar", "add_scalars", "add_text", "close", "debug", "display", "error",
    "exception", "flush", "format", "info", "join", "log", "log_metrics", "plot", "print", "refresh", "round", "savefig",
    "set_description", "set_postfix", "set_postfix_str", "warning", "write",
})  # fmt: skip
"""Functions and methods that only show what they get."""
_CHANGES = ADDS | {"fill", "sort", "resize"}
QUIET = frozenset(
    {
        "backward",
        "collect",
        "empty_cache",
        "eval",
        "int",
        "len",
        "str",
        "step",
        "train",
        "wait_for_everyone",
        "zero_grad",
    }
)
QUIET_PARTS = (
    "add_",
    "checkpoint",
    "eval",
    "log",
    "plot",
    "print",
    "report",
    "sample",
    "save",
    "test",
    "track",
    "valid",
    "write",
)
"""Functions, and parts of their names, that a count of batches decides about without harm to the weights."""
CLOCKS = frozenset({
    "monotonic", "monotonic_ns", "now", "perf_counter", "perf_counter_ns", "process_time", "time", "time_ns",
})  # fmt: skip
"""Functions that give the time."""
MOST_BYTES = 1 << 20
"""Of a file that is parsed."""
UNCOUNTED = frozenset({"vector_to_parameters", "untyped_storage", "from_numpy", "set_"})
"""How a script gets at a tensor's memory past its counter of writes, beside `.data`."""


@functools.lru_cache(64)
def tree(file: str) -> ast.Module | None:
    """A file's syntax as it is when it is read first; None where it is unreadable, or too long."""
    try:
        text = "".join(linecache.getlines(file))
        return ast.parse(text) if 0 < len(text) <= MOST_BYTES else None
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return None


@functools.lru_cache(256)
def scope_of(code: CodeType) -> ast.AST | None:
    """The function, or the file, that is this code."""
    module = tree(code.co_filename)
    if module is None or code.co_name == "<module>":
        return module
    for node in ast.walk(module):
        if isinstance(node, FUNCTIONS) and getattr(node, "name", "<lambda>") == code.co_name:
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            if first == code.co_firstlineno:
                return node
    return None


@functools.lru_cache(256)
def loop_around(code: CodeType, line: int) -> Loop | None:
    """The innermost loop around a line of the code."""
    scope = scope_of(code)
    found = [one for one in ast.walk(scope) if isinstance(one, Loop)] if scope is not None else []
    return max(
        (one for one in found if one.lineno <= line <= (one.end_lineno or 0)), key=lambda one: one.lineno, default=None
    )


@functools.lru_cache(256)
def assigned_first(loop: Loop) -> dict[str, bool]:
    """Names that a turn of the loop reads only where it has assigned them; True of those that every turn assigns."""
    flow = Flow()
    head = flow.through([loop.test if isinstance(loop, ast.While) else loop.target], frozenset())
    surely = flow.of_turn(loop.body, head)
    return {name: name in surely for name in _stored(loop) - flow.exposed}


@functools.lru_cache(256)
def read_behind(code: CodeType, line: int) -> frozenset[str]:
    """Names that the loop around the line assigns, and that its function reads first in some line behind it.

    "" where the source is nested too deeply to be followed.
    """
    scope, loop = scope_of(code), loop_around(code, line)
    if scope is None or loop is None:
        return frozenset()
    flow, body = Flow(after=loop.end_lineno or loop.lineno), getattr(scope, "body", [])
    try:
        flow.through(body if isinstance(body, list) else [body], frozenset())
    except RecursionError:
        return frozenset({""})
    return _stored(loop) & flow.exposed


def _stored(node: ast.AST) -> frozenset[str]:
    names = (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
    return frozenset(
        [*names, *(one.name for one in ast.walk(node) if isinstance(one, (ast.FunctionDef, ast.ClassDef)))]
    )


def counters(loop: Loop) -> list[str]:
    """What counts the steps of `run.steps` from outside, and is read: it begins anew where a run resumes inside an epoch."""
    call = loop.iter if isinstance(loop, (ast.For, ast.AsyncFor)) else None
    if not isinstance(call, ast.Call) or not any(_last(getattr(one, "func", one)) == "steps" for one in call.args):
        return []
    name = _last(call.func)
    if name != "enumerate":
        return [name] if name in ("zip", "islice") else []
    targets = getattr(loop.target, "elts", [])[:1]  # type: ignore[union-attr]
    names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    return [name] if any(uses(Word(one, (ast.Name,)), loop.body).is_read for one in names) else []


@dataclass(frozen=True)
class Uses:
    """How some code uses a word: the name of a variable or of an attribute."""

    is_read: bool = False
    """Whether anything is computed from it: it is not only assigned, added to and shown."""
    line: int = 0
    """Where it is changed first; else where it is used first."""


@dataclass(frozen=True)
class Word:
    """The name of a variable, an attribute or both."""

    text: str
    kinds: tuple[type[ast.expr], ...] = (ast.Name, ast.Attribute)
    adds: bool = True
    """Whether methods that are called as those that only add do so: not those of an average of the weights."""

    def names(self, node: ast.AST) -> bool:
        """Whether the node is this name, itself or behind a dot."""
        return isinstance(node, self.kinds) and _last(node) == self.text


def uses(word: Word, body: Sequence[ast.AST]) -> Uses:
    """How these statements use it."""
    found = [one for node in body for one in _uses(node, word, is_idle=False)]
    if {kind for _, kind in found} >= {"clock"} and "set" not in {kind for _, kind in found}:
        return Uses(False, found[0][0])  # the script measures how long something takes
    changed = [line for line, kind in found if kind != "read"]
    return Uses(any(kind == "read" for _, kind in found), min(changed or [line for line, _ in found], default=0))


def decides(word: Word, body: Sequence[ast.AST]) -> bool:
    """Whether a count decides more than when to stop, to save, to evaluate, to show and to update."""
    return any(_decides(one, word, body) for one in body)


def _decides(node: ast.AST, word: Word, body: Sequence[ast.AST]) -> bool:
    if isinstance(node, ast.If) and any(kind == "read" for _, kind in _uses(node.test, word, is_idle=False)):
        parts: list[ast.AST] = [*node.body, *node.orelse]
        if any(_reaches_out(one, node, word, body) for part in parts for one in ast.walk(part)):
            return True
    elif isinstance(node, (ast.JoinedStr, ast.Dict)) or (isinstance(node, ast.Call) and _is_quiet(node)):
        return False
    elif isinstance(node, ast.Assign) and _assigned(node, word):
        parts = []
    elif isinstance(node, (ast.Name, ast.Attribute)) and word.names(node):
        return isinstance(node.ctx, ast.Load)
    else:
        parts = [*ast.iter_child_nodes(node)]
    return any(_decides(one, word, body) for one in parts)


def _reaches_out(node: ast.AST, branch: ast.If, word: Word, body: Sequence[ast.AST]) -> bool:
    """Whether it changes something that is used outside of the branch."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return not _is_quiet(node.value)
    if not isinstance(getattr(node, "ctx", None), ast.Store) or word.names(node):
        return False
    if not isinstance(node, ast.Name):
        return not isinstance(node, (ast.Tuple, ast.List, ast.Starred))
    found = [pair for one in body for pair in _uses(one, Word(node.id, (ast.Name,)), is_idle=False)]
    return any(kind == "read" and not branch.lineno <= line <= (branch.end_lineno or 0) for line, kind in found)


def _is_quiet(call: ast.Call) -> bool:
    name = _last(call.func)
    return name in SHOWS | ADDS | QUIET or any(part in name.lower() for part in QUIET_PARTS)


@functools.lru_cache(256)
def functions_beside(file: str, loop: Loop | None, loop_file: str) -> tuple[ast.AST, ...]:
    """The functions of a file, which the loop of a file may call; what lies around the loop is none of them."""
    module = tree(file)
    found = [one for one in ast.walk(module) if isinstance(one, FUNCTIONS)] if module is not None else []
    if loop is not None and file == loop_file:
        found = [one for one in found if not one.lineno <= loop.lineno <= (one.end_lineno or 0)]
    return tuple(found)


def functions_that_see(name: str, code: CodeType | None, functions: Sequence[ast.AST]) -> list[ast.AST]:
    """Those of the functions for which a name is the variable of this code: nested ones, or of a module's all that have none of it."""
    if code is not None and name in code.co_freevars:  # of a hook: the function around it is over
        return [one for one in functions if name not in own_names(one)]
    if code is not None and code.co_name != "<module>":
        scope = scope_of(code)
        functions = [one for one in functions if scope is not None and id(one) in _inside(scope) and one is not scope]
    others = frozenset[int]().union(*(_inside(one) for one in functions if name in own_names(one)))
    return [one for one in functions if id(one) not in others]


@functools.lru_cache(1024)
def _inside(scope: ast.AST) -> frozenset[int]:
    """The function and those inside of it, by identity."""
    return frozenset(id(one) for one in ast.walk(scope) if isinstance(one, FUNCTIONS))


def writes_uncounted(node: ast.AST) -> bool:
    """Whether some statement may write to a tensor past its counter of writes: `p.data.mul_(2)`, `p.data = other`, `a.numpy()[0] = 1`."""
    return any(_writes(one) for one in ast.walk(node))


def _writes(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        if node.attr in ("data", "numpy"):
            return isinstance(node.ctx, ast.Store)
        is_change = node.attr in _CHANGES or (node.attr.endswith("_") and node.attr[0] != "_")
        return node.attr in UNCOUNTED or (is_change and _is_data(node.value))
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store) and _is_data(node.value)
    if isinstance(node, ast.Name):
        return node.id in UNCOUNTED
    is_assigned = isinstance(node, ast.Assign)
    return isinstance(node, (ast.Assign, ast.AugAssign)) and _is_data(node.value if is_assigned else node.target)  # type: ignore[union-attr]


def _is_data(node: ast.AST) -> bool:
    """Whether it is `p.data`, `p.numpy()` or a part of it."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return isinstance(node, ast.Attribute) and node.attr in ("data", "numpy") and _last(node.value) != "utils"


def _last(node: ast.AST) -> str:
    """`c` of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _uses(node: ast.AST, word: Word, *, is_idle: bool) -> Iterator[tuple[int, str]]:
    """Line and kind of each use: "set", "add", "show", "clock" or "read". `is_idle`: nobody takes what the node gives."""
    if isinstance(node, ast.Expr):
        yield from _uses(node.value, word, is_idle=True)
    elif isinstance(node, ast.AugAssign) and _root(node.target, word):
        yield node.lineno, "add"
        yield from _uses(node.value, word, is_idle=False)
    elif isinstance(node, ast.Assign) and (kind := _assigned(node, word)):
        yield node.lineno, kind
        is_sum = isinstance(node.value, ast.BinOp) and word.names(node.targets[0])
        yield from () if kind == "clock" else _uses(node.value.right if is_sum else node.value, word, is_idle=False)  # type: ignore[attr-defined]
    elif isinstance(node, ast.Call):
        yield from _called(node, word, is_idle=is_idle)
    elif isinstance(node, ast.If) and _only_shows(node):
        test = _uses(node.test, word, is_idle=False)
        yield from ((line, "show" if kind == "read" else kind) for line, kind in test)
        for statement in (*node.body, *node.orelse):
            yield from _uses(statement, word, is_idle=False)
    elif isinstance(node, SCOPES) and word.kinds == (ast.Name,) and word.text in own_names(node):
        return  # another variable
    elif isinstance(node, (ast.Name, ast.Attribute)) and word.names(node):
        yield node.lineno, "read" if isinstance(node.ctx, ast.Load) else "set"
    else:
        for part in ast.iter_child_nodes(node):
            yield from _uses(part, word, is_idle=False)


def _only_shows(node: ast.AST) -> bool:
    """Whether a statement does nothing but show something."""
    if isinstance(node, ast.If):
        return all(_only_shows(part) for part in (*node.body, *node.orelse))
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _last(node.value.func) in SHOWS


def _assigned(node: ast.Assign, word: Word) -> str:
    """Of an assignment to the word alone: "clock" for the time, "add" for `word = word + more` and `word[-1][...] = x`; else empty."""
    if isinstance(target := node.targets[0], ast.Subscript) and isinstance(target.value, ast.Subscript):
        return "add" if word.names(target.value.value) and ast.unparse(target.value.slice) == "-1" else ""
    if len(node.targets) != 1 or not word.names(node.targets[0]):
        return ""
    if isinstance(node.value, ast.Call) and _last(node.value.func) in CLOCKS:
        return "clock"
    return "add" if isinstance(node.value, ast.BinOp) and word.names(node.value.left) else ""


def _called(node: ast.Call, word: Word, *, is_idle: bool) -> Iterator[tuple[int, str]]:
    name = _last(node.func)
    is_known = name in SHOWS or (name in ADDS and word.adds)
    if is_idle and is_known and isinstance(node.func, ast.Attribute) and _root(node.func.value, word):
        yield node.lineno, "add"
        parts: list[ast.AST] = [*node.args, *node.keywords]
    else:
        parts = [node.func, *node.args, *node.keywords]
    for part in parts:
        for line, kind in _uses(part, word, is_idle=False):
            yield line, "show" if kind == "read" and name in SHOWS else kind


def _root(node: ast.AST, word: Word) -> bool:
    """Whether it is what the word names, or a part of it: `word`, `self.word`, `word["a"]`, `word.total`."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        if word.names(node):
            return True
        node = node.value
    return word.names(node)
