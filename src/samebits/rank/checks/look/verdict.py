"""What two looks show: names that have changed between them and that the script's source reads. Pure: snapshots in, names out."""

from __future__ import annotations

import ast
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from samebits.rank.caller import short
from samebits.rank.checks.look import source
from samebits.rank.checks.look.snapshot import Place, Seen, Snapshot


@dataclass(frozen=True)
class Named:
    """Something that the script keeps itself."""

    name: str
    where: str
    """File and line; empty where it is no single line's."""


def changed(before: Snapshot, after: Snapshot, until_s: float, *, counts_too: bool = True) -> list[Named]:
    """Names that both looks read whole and that have changed between them, but for those that decide nothing.

    Left out is what each turn of a loop assigns before it reads it, and what the loop only adds to, or shows.

    Args:
        before: the earlier look.
        after: the later one, from the same place of the script.
        until_s: by the thread's clock, when the time is over.
        counts_too: whether an int that has changed counts.

    Raises:
        TimeoutError: when the time is over.
    """
    found: dict[tuple[int, str], Named | None] = {}
    for key, seen in after.names.items():
        path, earlier = key[0], before.names.get(key)
        if earlier is None or earlier.bits == seen.bits or not (seen.is_whole and earlier.is_whole):
            continue
        # Of several names for one thing, that of the innermost function says what becomes of it.
        owner = seen.owner if seen.owner[0] else (0, path)
        if time.thread_time() > until_s:
            raise TimeoutError
        if (counts_too or not seen.is_count) and owner not in found:
            found[owner] = _named(path, seen, after.places)
    return [one for one in found.values() if one is not None]


def unread(snapshots: Sequence[Snapshot], until_s: float) -> list[Named]:
    """Names that the loop, or of a variable a function beside it, reads, with a part that some look could not read."""
    found: dict[str, Named] = {}
    for snapshot in snapshots:
        for (path, _, _), seen in snapshot.names.items():
            if not seen.is_whole and not seen.is_held and path not in found:
                if time.thread_time() > until_s:
                    raise TimeoutError
                body = [one for _, loop in _loops(snapshot.places) for one in loop.body]
                words = _as_written(path, seen)
                is_read = "." not in path or " " in path or any(source.uses(word, body).is_read for word in words)
                if is_read and (named := _named(path, seen, snapshot.places)) is not None:
                    found[path] = named
    return [*found.values()]


def counted(snapshot: Snapshot) -> list[Named]:
    """What counts the steps from outside of the loop."""
    place = snapshot.places[0] if snapshot.places else None
    loop = source.loop_around(place.code, place.line) if place is not None else None
    if place is None or loop is None:
        return []
    return [Named(f"the count of {name}", short(place.code.co_filename, loop.lineno)) for name in source.counters(loop)]


def _as_written(path: str, seen: Seen) -> list[source.Word]:
    """The words of a path as code has them: a function's variable is never behind a dot, and an attribute always.

    Those of `self.shadow of Ema` are the first two: a library holds the object, and no variable has to.
    """
    texts, code = path.partition(" ")[0].split("."), seen.code
    words = [source.Word(text, (ast.Attribute,), seen.adds[text is texts[-1]]) for text in texts]
    words[0] = replace(words[0], kinds=(ast.Name, ast.Attribute) if code is None else (ast.Name,))
    return words if texts[0] != "self" else words[1:]


def _loops(places: Sequence[Place]) -> list[tuple[Place, source.Loop]]:
    found = [(place, source.loop_around(place.code, place.line)) for place in places]
    return [(place, loop) for place, loop in found if loop is not None]


def _named(path: str, seen: Seen, places: Sequence[Place]) -> Named | None:
    """The name with its line; None where the source shows that it decides nothing."""
    if seen.is_held:
        return Named(path, "")
    running, words = _loops(places), _as_written(path, seen)
    own = [loop for place, loop in running if place.code is seen.code]
    if "." not in path and any(path in source.assigned_first(loop) for loop in own or [loop for _, loop in running]):
        return None
    files = list(dict.fromkeys([seen.file, *(place.code.co_filename for place in places)]))
    if any(source.tree(file) is None for file in files):
        return Named(path, short(seen.file, 0).removesuffix(":0"))
    body: list[ast.AST] = [one for _, loop in running for one in loop.body]
    around = (running[0][1], running[0][0].code.co_filename) if running else (None, "")
    beside = {file: source.functions_beside(file, *around) for file in files}
    functions = [one for found in beside.values() for one in found]
    by_name = ast.Name in words[0].kinds
    seeing = source.functions_that_see(words[0].text, seen.code, functions) if by_name else functions
    found = [source.uses(word, [*body, *(functions if number else seeing)]) for number, word in enumerate(words)]
    # [Note: why each word must be read]
    # A meter that is only updated and printed decides nothing, however its own methods read what it holds.
    in_loop = [source.uses(word, body) for word in words[:-1]]
    if not all(one.is_read for one in found) or not all(one.is_read or not one.line for one in in_loop):
        return None
    for file in files:
        own_body = [one for place, loop in running if place.code.co_filename == file for one in loop.body]
        if line := source.uses(words[-1], [*own_body, *beside[file]]).line:
            return Named(path, short(file, line))
    return Named(path, "")
