"""The lines of a run's record: what each holds, and how they form a chain. Pure.

    {"record": 1, "samebits": "..."}                    the first line
    {"start": 0, "ranks": 4, "strategy": "ddp", ...}    ranks have started, after so many steps; it is not checked
    {"conditions": {...}, "after": 0, "chain": "..."}   what bits depend on, wherever it has changed
    {"step": 1, "epoch": 1, "loss": [0.5], ... }        a step
    {"differs": 7, "was": {...}, "is": {...}}           a step that came again otherwise; the record ends there
    {"end": 46, "bits": "sha256:..."}                   the script has ended well
    {"state": 40, "files": {...}}                       of a published record: the SHA-256 of each file of a state

Conditions and steps form the chain, nothing else: states, starts and ends differ between runs with equal bits. A line's link is a
SHA-256 over the link before it and its own text, cut to 16 bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

VERSION = 1
RECORD, START, CONDITIONS, STEP, DIFFERS, END, STATE = (
    *("record", "start", "conditions", "step"),
    *("differs", "end", "state"),
)
"""The first key of a line says what it is."""
CHAIN = "chain"
LINKED = frozenset((CONDITIONS, STEP))
MOST_BYTES = 4 << 20
"""Of a line: conditions name each package and source file."""
MOST_STEP = 1 << 53
FEW = 3
"""So many losses or learning rates stand in a line; of more of them a hash does."""

_LINK = f',"{CHAIN}":"'.encode()
_LINK_DIGITS = 32


class Chain:
    """Makes the lines that follow the link `head`."""

    def __init__(self, head: str = "") -> None:
        self.head = head

    def line(self, body: Mapping[str, Any]) -> bytes:
        """The line of `body`, without its newline; it is the newest link from now on."""
        text = unlinked(body)[:-1]
        self.head = link_after(self.head, text)
        return text + _LINK + self.head.encode() + b'"}'


def unlinked(body: Mapping[str, Any]) -> bytes:
    """A line that is in no chain."""
    return json.dumps(body, separators=(",", ":")).encode()


def link_after(head: str, text: bytes) -> str:
    """The link of a line whose text, up to its own link, is `text`."""
    return hashlib.sha256(head.encode() + b"\n" + text).hexdigest()[:_LINK_DIGITS]


def split(line: bytes) -> tuple[bytes, str]:
    """A line's text up to its link, and the link. Raises ValueError where it has none."""
    text, found, link = line[:-2].rpartition(_LINK)
    if not found or line[-2:] != b'"}' or len(link) != _LINK_DIGITS:
        raise ValueError("it has no link")
    return text, link.decode()


def plain_number(value: float | None) -> float | str | None:
    """A number as a line has it: JSON has no word for what is not finite."""
    return value if value is None or math.isfinite(value) else repr(value)


def few(values: list[Any]) -> list[Any] | str:
    """The values, or a hash over all of them where they are many."""
    if len(values) <= FEW:
        return values
    return f"{len(values)} of {hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]}"


def _finite(text: str) -> float:
    if math.isfinite(value := float(text)):
        return value
    raise ValueError("too large a number")


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_number)


def decoded(line: bytes) -> dict[str, Any]:
    """A line's object.

    Raises:
        ValueError: for what is none of this version's lines; its text says why.
    """
    try:
        body = _DECODER.decode(line.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise ValueError("it is not JSON, or not as samebits writes it") from None
    kind = next(iter(body)) if isinstance(body, dict) and body else ""
    check = _CHECKS.get(kind)
    if check is None or not check(body):
        raise ValueError("it is not a line of a record")
    return dict(body)


def is_number(value: Any) -> bool:
    """Whether it can be a number of steps."""
    return type(value) is int and 0 <= value < MOST_STEP


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_texts(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _is_values(value: Any) -> bool:
    """Whether these can be losses or learning rates: numbers, words for those that are not finite, or a hash of many."""
    return _is_text(value) or (type(value) is list and all(map(_is_value, value)))


def _is_value(value: Any) -> bool:
    return value is None or type(value) in (float, str) or (type(value) is int and abs(value) < MOST_STEP)


_OF_STEP: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("ids", "data", "lanes", CHAIN), _is_text),
    **dict.fromkeys(("loss", "lr", "scale"), _is_values),
    **dict.fromkeys(("epoch", "from", STEP), is_number),
}
"""What stands in a step's line."""
_OF_START: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("script", "strategy"), _is_text),
    **dict.fromkeys((START, "ranks"), is_number),
    "arguments": _is_texts,
}


def is_step(body: Any) -> bool:
    """Whether it says of a step what a line does; its link may be missing."""
    if not isinstance(body, dict) or not body.get(STEP):
        return False
    return all(key in _OF_STEP and _OF_STEP[key](value) for key, value in body.items())


def first_step_of(body: Mapping[str, Any]) -> int:
    """The first step that a step's line is about: before its own there may be some without a backward."""
    step: int = body[STEP]
    first: int = body.get("from", step)
    return first if 0 < first <= step else step


def _is_start(body: Mapping[str, Any]) -> bool:
    return all(check(body[key]) for key, check in _OF_START.items() if key in body)


def _is_conditions(body: Mapping[str, Any]) -> bool:
    found = body[CONDITIONS]
    is_linked = is_number(body.get("after")) and _is_text(body.get(CHAIN))
    return is_linked and isinstance(found, dict) and _is_files(found.get("files", {}))


def _is_files(files: Any) -> bool:
    return isinstance(files, dict) and all(map(_is_text, files.values()))


_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    RECORD: lambda body: is_number(body[RECORD]),
    START: _is_start,
    CONDITIONS: _is_conditions,
    STEP: lambda body: is_step(body) and CHAIN in body,
    DIFFERS: lambda body: is_number(body[DIFFERS]) and all(is_step(body.get(one)) for one in ("was", "is")),
    END: lambda body: is_number(body[END]) and _is_text(body.get("bits")),
    STATE: lambda body: is_number(body[STATE]) and _is_files(body.get("files")),
}
