"""What a line of the user's program says, to find ranks that make the same calls in another order.

The compiled part looks at the frames of each call of a collective and asks here about each place once. A place is
known by the text of its call and the function around it, not by its line, because ranks may make the same call from
both branches of an `if`. Calls that come from inside torch (DDP, autograd) say nothing.

Ranks may also do different things on purpose: they take turns, one contributing its tensor and the others zeros. Then
a rank reaches both branches of an `if` in its turns; `belong_together` finds that.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import linecache
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import torch.distributed as dist

from samebits.rank.caller import PASSED_OVER, TORCH, short
from samebits.rank.transport.local.native import compiled

OURS, USERS, INNER = range(3)
"""Kinds of places, as native/bindings/sites.hpp numbers them."""

CallSite = tuple[CodeType, int]
"""A code object and the offset of an instruction in it."""
Span = tuple[int, int, int, int]
"""First and last line, from 1, and columns in bytes, from 0; both columns are 0 if Python does not keep them."""
Decision = tuple[int, int]
"""The line and column where it begins."""
Branches = frozenset[tuple[Decision, int]]

_COLLECTIVES = {dist.distributed_c10d.__file__, dist.c10d_logger.__file__}
_JUMPS = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@lru_cache
def sites() -> compiled.Sites:
    """The places that the compiled part knows; one object per process."""
    return compiled.Sites(describe)


def describe(code: CodeType, lasti: int) -> tuple[int, int, str]:
    """Return the kind of a place, a hash of what it says (0: nothing to compare), and `file:line`."""
    file = code.co_filename
    if file.startswith(PASSED_OVER) or file in _COLLECTIVES:
        return OURS, 0, ""
    if file.startswith(TORCH):
        return INNER, 0, ""
    span = span_of(code, lasti)
    text = text_at(file, span)
    words = f"{file}\0{code.co_qualname}\0{text}".encode(errors="surrogateescape")
    label = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") if text else 0
    return USERS, label, short(file, span[0])


def span_of(code: CodeType, lasti: int) -> Span:
    """Where the instruction is in the source."""
    positions = next(itertools.islice(code.co_positions(), lasti // 2, None), (None,) * 4)
    first, last, start, end = positions
    first = first or code.co_firstlineno
    return first, last or first, start or 0, end or 0


def text_at(file: str, span: Span) -> str:
    """The source there, without spaces and line breaks; empty if it is not available."""
    first, last, start, end = span
    lines = [linecache.getline(file, line).encode() for line in range(first, last + 1)]
    if end:
        # Before the first line is cut: they may be the same.
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][start:]
    return "".join(b"".join(lines).decode(errors="replace").split())


def belong_together(calls: Sequence[Sequence[CallSite]]) -> tuple[bool, str]:
    """Whether this rank's calls belong together although other ranks make them in another order; and their lines.

    Args:
        calls: in this rank's order; each as its places, the innermost first.
    """
    known = [call for call in calls if call]
    pairs = list(itertools.combinations(known, 2))
    together = any(are_alternatives(*pair) for pair in pairs) or not any(stand_in_one_function(*pair) for pair in pairs)
    return together, ", then ".join(_line(_distinct(call, known)) for call in known)


def _distinct(call: Sequence[CallSite], calls: Sequence[Sequence[CallSite]]) -> CallSite:
    """The innermost place in which this call differs from another one, else its innermost place."""
    return next((place for place, *others in zip(call, *calls, strict=False) if set(others) != {place}), call[0])


def _line(place: CallSite) -> str:
    return short(place[0].co_filename, span_of(*place)[0])


def stand_in_one_function(one: Sequence[CallSite], other: Sequence[CallSite]) -> bool:
    """Whether some function makes both calls. If none does, a decision that is not visible here may lead to either."""
    return any(first[0] is second[0] and first[1] != second[1] for first, second in itertools.product(one, other))


def are_alternatives(one: Sequence[CallSite], other: Sequence[CallSite]) -> bool:
    """Whether a decision (`if`, `match`, `except`, `a if b else c`, `a and b or c`) led to one call or the other."""
    return any(
        first[0].co_filename == second[0].co_filename
        and exclude_each_other(
            branches(first[0].co_filename, span_of(*first)), branches(second[0].co_filename, span_of(*second))
        )
        for first, second in itertools.product(one, other)
    )


def exclude_each_other(one: Branches, other: Branches) -> bool:
    """Whether two sets of (decision, branch) take different branches of one decision."""
    taken = dict(one)
    return any(taken.get(decision, branch) != branch for decision, branch in other)


@lru_cache(maxsize=256)
def branches(file: str, span: Span) -> Branches:
    """The decisions that lead to this place, and which branch of each; none if the source cannot be read."""
    try:
        return frozenset(_descend(_tree(file), span))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()


@lru_cache(maxsize=16)
def _tree(file: str) -> ast.AST:
    return ast.parse("".join(linecache.getlines(file)))


def _descend(node: ast.AST, span: Span) -> Iterator[tuple[Decision, int]]:
    for name, value in ast.iter_fields(node):
        # Decisions behind which the place comes: an `if` whose body jumps away.
        left: list[tuple[Decision, int]] = []
        for index, part in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(part, ast.AST):
                continue
            if _holds(part, span):
                branch = _branch(node, name, index)
                yield from left if branch is None else [*left, (_decision(node), branch)]
                yield from _descend(part, span)
                return
            if isinstance(part, ast.If) and isinstance(part.body[-1], _JUMPS):
                left.append((_decision(part), 1))


def _decision(node: Any) -> Decision:
    return node.lineno, node.col_offset


def _branch(node: ast.AST, name: str, index: int) -> int | None:
    """Which branch of the node a part is; None if the node is no decision."""
    if isinstance(node, ast.If | ast.IfExp):
        return {"body": 0, "orelse": 1}.get(name)
    if isinstance(node, ast.Try):
        return {"body": 0, "orelse": 0, "handlers": 1 + index}.get(name)
    if isinstance(node, ast.BoolOp):
        return index if name == "values" else None
    return index if isinstance(node, ast.Match) and name == "cases" else None


def _holds(node: Any, span: Span) -> bool:
    first, last, start, end = span
    # A `case`, arguments, a part of a comprehension.
    if not hasattr(node, "lineno"):
        return any(_holds(child, span) for child in ast.iter_child_nodes(node))
    if not end:
        return bool(node.lineno <= first and last <= node.end_lineno)
    return bool(
        (node.lineno, node.col_offset) <= (first, start) and (last, end) <= (node.end_lineno, node.end_col_offset)
    )
