"""A state that is read without a run and without torch: found, its files checked byte by byte, its documents decoded."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from samebits.errors import SamebitsError, UsageError
from samebits.machine.regular_file import read_regular
from samebits.protocol.state_files.folder import TRIES, StateFolder, identity_of
from samebits.protocol.state_files.manifest import CHANGED, DOCUMENTS, NAME, OLDER, Manifest, damage, damage_of, loads

Form = Any
"""Of a value of JSON: a test, a list with the form of its items, or a dictionary with forms by key."""


def _fits(value: Any, form: Form) -> bool:
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(item, form[0]) for item in value)
    if isinstance(form, dict):
        return isinstance(value, Mapping) and all(key in value and _fits(value[key], form[key]) for key in form)
    return bool(form(value))


def _only(form: dict[str, Form]) -> Form:
    """These keys and no others."""
    return lambda value: _fits(value, form) and len(value) == len(form)


def _or_none(form: Form) -> Form:
    return lambda value: value is None or _fits(value, form)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_line(value: Any) -> bool:
    return _fits(value, dict.fromkeys(("step", "epoch", "time"), lambda _: True)) and all(
        map(_or_none(_is_number), value.values())
    )


def _are_sums(value: Any) -> bool:
    """By name and lane: two numbers each."""
    return isinstance(value, Mapping) and all(
        isinstance(lanes, Mapping)
        and all(
            lane.isdecimal() and isinstance(pair, list) and [*map(type, pair)] == [float, float]
            for lane, pair in lanes.items()
        )
        for lanes in value.values()
    )


_ACCOUNT = _only(
    dict.fromkeys(("loader", "steps", "samples", "different"), _is_count)
    | dict.fromkeys(("of_steps", "of_samples"), _or_none(_is_count))
    | {"order": _is_text}
)
_FORMS: dict[str, Form] = {
    "step": _is_count,
    "epoch": _is_count,
    "num_losses": _is_count,
    "loss": _is_number,
    "epochs_seen": [_is_count],
    "epochs": {"loop": _is_count, "next": _is_count},
    "loaders": [{"epochs_begun": _is_count} | dict.fromkeys(("batch_size", "samples"), _or_none(_is_count))],
    "inside": _or_none(_only({**dict.fromkeys(("loader", "done", "loop"), _is_count), "order": _is_text})),
    "tallies": _or_none(_only({"outside": [_are_sums], "body": [_are_sums]})),
    "accounts": [_ACCOUNT],
    "account": _or_none(_ACCOUNT),
    "lines": [_is_line],
}
"""Of the counters. What may be missing, in older states, comes last."""
_WHERE_MISSING: dict[str, Any] = {"inside": None, "tallies": None, "accounts": [], "account": None, "lines": []}


def wrong_counters(saved: Any) -> str:
    """What is wrong with them, in words; empty when nothing is.

    Args:
        saved: what `samebits.rank.checkpoint.parts.position.counters` made once.
    """
    if not isinstance(saved, Mapping):
        return "its counters are not a dictionary"
    found = {**_WHERE_MISSING, **saved}
    wrong = (name for name, form in _FORMS.items() if not _fits(found.get(name), form))
    return next((f"its counter {name} is {repr(found.get(name))[:100]}" for name in wrong), "")


Result = TypeVar("Result")
COUNTERS = "the run"
"""The document that says where the run was."""
UNLIKE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, struct.error)
"""What reading a document raises that samebits did not write."""


def open_state(path: str | os.PathLike[str]) -> tuple[Path, Manifest]:
    """The folder, which is `.NAME.previous` where a program ended while it replaced `path`, and its manifest.

    Raises:
        UsageError: when the manifest is missing or damaged.
        NewerState: when it is of a newer version.
    """
    folder = StateFolder(path)
    found = folder.read_manifest()
    if found is None:
        raise UsageError(f"{folder.target} has no {NAME}.", OLDER)
    return found


def settled(place: Path, read: Callable[[], Result]) -> Result:
    """What `read` returns or raises; again, when it raised and another program has replaced `place` meanwhile."""
    for _ in range(TRIES - 1):
        before = identity_of(place)
        try:
            return read()
        except SamebitsError:
            if before == identity_of(place):
                raise
    return read()


def whole_state(
    path: str | os.PathLike[str], needed: Callable[[Manifest], Iterable[str]] = lambda manifest: manifest.files
) -> tuple[Path, Manifest]:
    """The folder and the manifest of a state.

    Args:
        path: the state.
        needed: which files to check; all by default.

    Raises:
        UsageError: when there is none, it is damaged, or a needed file is not in it.
    """
    return settled(Path(path), lambda: _checked(path, needed))


def _checked(path: str | os.PathLike[str], needed: Callable[[Manifest], Iterable[str]]) -> tuple[Path, Manifest]:
    place, manifest = open_state(path)
    for name in needed(manifest):
        if name not in manifest.files:
            raise UsageError(f"{place} is not a state: its manifest does not name {name}.", CHANGED)
        if problem := damage_of(place / name, manifest.files[name]):
            raise problem
    return place, manifest


def documents_of(place: Path, manifest: Manifest) -> tuple[dict[str, Any], dict[str, Any]]:
    """The documents of a state by label, and by optimizer what it keeps for each parameter; both still encoded.

    Raises:
        UsageError: when the file is missing or damaged, or its counters cannot be true.
    """
    path = place / DOCUMENTS
    if DOCUMENTS not in manifest.files:
        raise UsageError(f"{place} is not a state: its manifest does not name {DOCUMENTS}.", CHANGED)
    if problem := damage_of(path, manifest.files[DOCUMENTS]):
        raise problem
    try:
        record = loads(read_regular(path, follow=False))
        documents, entries = dict(record["documents"]), dict(record["entries"])
        wrong = wrong_counters(plain(documents[COUNTERS]))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).", "Check the path.") from None
    except UNLIKE:
        wrong = "samebits does not write such a file"
    if wrong:
        raise UsageError(f"{path} cannot be trusted: {wrong}.", CHANGED)
    return documents, entries


def plain(value: Any) -> Any:
    """A value with its tuples as lists and its tagged numbers as numbers; everything else stays as it is encoded."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value.get("$"):
        case None:
            return {key: plain(item) for key, item in value.items()}
        case "float":
            return struct.unpack(">d", bytes.fromhex(value["bits"]))[0]
        case "tuple":
            return [plain(item) for item in value["items"]]
    return value


def trouble_of(path: Path) -> SamebitsError | None:
    """Why a state cannot be loaded; None when it is whole. Every byte is read."""
    try:
        found = StateFolder(path).read_manifest()
    except SamebitsError as error:
        return error
    if found is None:
        return UsageError(f"{path} has no {NAME}.", OLDER)
    return damage(*found)


def not_finite_in(path: Path) -> str:
    """A tensor of a state that is not finite; empty where all are that should be, or where that is unknown.

    Raises:
        SamebitsError: when it cannot be read.
    """
    found = StateFolder(path).read_manifest()
    return found[1].not_finite if found is not None else ""
