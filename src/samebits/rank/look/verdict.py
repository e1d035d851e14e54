"""What two looks show: names that have changed between them and that the script's source reads. Pure: observations in, names out."""

from __future__ import annotations

import ast
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import CodeType

from samebits.rank.caller import short
from samebits.rank.look import source
from samebits.rank.look.flow import Loop, left_for_lanes, loops_over_lanes
from samebits.rank.look.observation import CodeLine, Observation, Seen


@dataclass(frozen=True)
class Named:
    """Something that the script keeps itself."""

    name: str
    where: str
    """File and line; empty where it is no single line's."""
    kind: str = ""
    """"count" of a library's batches, "generator", or what has no advice of its own."""


def changed(before: Observation, after: Observation, until_s: float, *, counts_too: bool = True) -> list[Named]:
    """Names that both looks read whole and that have changed between them, but for those that decide nothing.

    Left out is what each turn of a loop assigns before it reads it, and what the loop only adds to, or shows.

    Args:
        before: the earlier look.
        after: the later one, from the same place of the script.
        until_s: by the thread's clock, when the time is over.
        counts_too: whether every int that has changed counts; else one that decides something.

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
        if owner not in found:
            found[owner] = _named(path, seen, after.places, must_decide=seen.is_count and not counts_too)
    return [one for one in found.values() if one is not None]


def counts_of_lanes(observation: Observation) -> list[Named]:
    """Where a library's batches are lanes: what `enumerate` counts of them, and decides something."""
    found = []
    for place, loop in _loops(observation.places)[:1]:
        call, target = getattr(loop, "iter", None), getattr(loop, "target", None)
        first = target.elts[0] if isinstance(target, ast.Tuple) else None
        is_counted = isinstance(call, ast.Call) and getattr(call.func, "id", "") == "enumerate"
        if is_counted and isinstance(first, ast.Name) and source.decides(source.Word(first.id, (ast.Name,)), loop.body):
            found.append(Named(first.id, short(place.code.co_filename, loop.lineno), "count"))
    return found


def left_behind(observation: Observation) -> list[Named]:
    """What the script makes behind its lanes of this rank's last one, and lanes of the next step read."""
    found = []
    for place, loop in _loops(observation.places)[:1]:
        loops, body = loops_over_lanes(source.scope_of(place.code) or loop, loop)
        for name, line in left_for_lanes(loops, body).items():
            reads = [one for one in loops if not source.assigned_first(one).get(name)]
            if any(source.uses(source.Word(name), one.body).is_read for one in reads):
                found.append(Named(name, short(place.code.co_filename, line)))
    return found


def unread(observations: Sequence[Observation], until_s: float) -> list[Named]:
    """Names that the loop, or of a variable a function beside it, reads, with a part that some look could not read."""
    found: dict[str, Named] = {}
    for observation in observations:
        for (path, _, _), seen in observation.names.items():
            if not seen.is_whole and not seen.is_held and path not in found:
                if time.thread_time() > until_s:
                    raise TimeoutError
                body = [one for _, loop in _loops(observation.places) for one in loop.body]
                words = _as_written(path, seen)
                is_read = "." not in path or " " in path or any(source.uses(word, body).is_read for word in words)
                if is_read and (named := _named(path, seen, observation.places)) is not None:
                    found[path] = named
    return [*found.values()]


def counted(observation: Observation) -> list[Named]:
    """What counts the steps from outside of the loop."""
    place = observation.places[0] if observation.places else None
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


def _loops(places: Sequence[CodeLine]) -> list[tuple[CodeLine, Loop]]:
    found = [(place, source.loop_around(place.code, place.line)) for place in places]
    return [(place, loop) for place, loop in found if loop is not None]


def _sees(place: CodeLine, name: str, code: CodeType | None) -> bool:
    """Whether a name is in this running function the variable of that code."""
    of_place = place.code
    is_own = of_place.co_name == "<module>" or name in (*of_place.co_varnames, *of_place.co_cellvars)
    return of_place is code or not is_own or (code is None and of_place.co_name == "<module>")


def _named(path: str, seen: Seen, places: Sequence[CodeLine], *, must_decide: bool = False) -> Named | None:
    """The name with its line; None where the source shows that it decides nothing."""
    if seen.is_held:
        return None if must_decide else Named(path, "", seen.kind)
    files = list(dict.fromkeys([seen.file, *(place.code.co_filename for place in places)]))
    words, running = _as_written(path, seen), _loops(places)
    by_name, first = ast.Name in words[0].kinds, words[0].text
    if any(source.tree(file) is None for file in files):
        own = [loop for place, loop in running if place.code is seen.code]
        is_fresh = "." not in path and any(source.assigned_first(loop).get(first) for loop in own)
        return None if is_fresh else Named(path, short(seen.file, 0).removesuffix(":0"), seen.kind)
    around = (running[0][1], running[0][0].code.co_filename) if running else (None, "")
    beside = {file: source.functions_beside(file, *around) for file in files}
    every = [one for found in beside.values() for one in found]
    seeing = source.functions_that_see(first, seen.code, every) if by_name else every
    loops = [(place, loop) for place, loop in running if not by_name or _sees(place, first, seen.code)]
    if "." not in path and _is_fresh(words[0], seen, loops, seeing):
        return None
    body, whole = ([one for _, loop in some for one in loop.body] for some in (loops, running))
    scopes = [[*whole, *every] if number else [*body, *seeing] for number, _ in enumerate(words)]
    # [Note: why each word must be read]
    # A meter that is only updated and printed decides nothing, however its own methods read what it holds.
    in_loop = [source.uses(word, whole if number else body) for number, word in enumerate(words[:-1])]
    is_read = [source.uses(word, scope).is_read for word, scope in zip(words, scopes, strict=True)]
    is_read += [one.is_read or not one.line for one in in_loop]
    if not all(is_read) or (must_decide and not source.decides(words[-1], scopes[-1])):
        return None
    kind, scope = "count" if must_decide else seen.kind, {id(one) for one in scopes[-1]}
    for file in files:
        own_body = [one for place, loop in running if place.code.co_filename == file for one in loop.body]
        if line := source.uses(words[-1], [one for one in (*own_body, *beside[file]) if id(one) in scope]).line:
            return Named(path, short(file, line), kind)
    return Named(path, "", kind)


def _is_fresh(
    word: source.Word, seen: Seen, loops: Sequence[tuple[CodeLine, Loop]], functions: Sequence[ast.AST]
) -> bool:
    """Whether a turn reads a variable only where it has assigned it; without always doing so, it must be no function's beside."""
    found = [source.assigned_first(loop) for place, loop in loops if place.code is seen.code]
    sure = [one[word.text] for one in found or [source.assigned_first(loop) for _, loop in loops] if word.text in one]
    return any(sure) or (bool(sure) and not source.uses(word, functions).is_read)
