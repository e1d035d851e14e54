"""A state that is read without a run and without torch: found, its files checked byte by byte, its documents decoded."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lockstep.errors import LockstepError, UsageError
from lockstep.machine.regular_file import read_regular
from lockstep.protocol.state_files.folder import TRIES, StateFolder, identity_of
from lockstep.protocol.state_files.manifest import CHANGED, DOCUMENTS, NAME, OLDER, Manifest, damage_of, loads

MOST = 1 << 62


def wrong_counters(saved: Any) -> str:
    """What is wrong with them, in words; empty when nothing is.

    Args:
        saved: what `lockstep.rank.checkpoint.saving.state.counters` made once.
    """
    return next(_problems(saved), "") if isinstance(saved, Mapping) else "its counters are not a dictionary"


def _problems(saved: Mapping[str, Any]) -> Iterator[str]:
    for name in ("step", "epoch", "num_losses"):
        if not _is_count(saved.get(name)):
            yield f"its counter {name} is {saved.get(name)!r}"
    if type(saved.get("loss")) not in (int, float):
        yield f"its loss is {saved.get('loss')!r}"
    seen, position = saved.get("epochs_seen"), saved.get("epochs")
    if not isinstance(seen, list) or not all(map(_is_count, seen)):
        yield "its samples per epoch are not numbers"
    if not isinstance(position, Mapping) or not all(_is_count(position.get(name)) for name in ("loop", "next")):
        yield f"its position in the script's epochs is {position!r}"
    if saved.get("tallies") is not None and not _are_tallies(saved["tallies"]):
        yield "its tallies are not described the way lockstep does it"
    if not _is_inside(saved.get("inside")):
        yield f"its place inside an epoch is {saved.get('inside')!r}"
    accounts = saved.get("accounts", [])
    now = saved.get("account")
    if not isinstance(accounts, list) or not all(map(_is_account, [*accounts, *([] if now is None else [now])])):
        yield "its accounts of samples are not described the way lockstep does it"
    yield from _unlike_lists(saved)


def _unlike_lists(saved: Mapping[str, Any]) -> Iterator[str]:
    for what, told, is_one in (
        ("lines of run.log", saved.get("lines", []), _is_line),
        ("loaders", saved.get("loaders"), _is_loader),
    ):
        if not isinstance(told, list) or not all(map(is_one, told)):
            yield f"its {what} are not described the way lockstep does it"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _is_inside(told: Any) -> bool:
    if told is None:  # between epochs
        return True
    return (
        isinstance(told, Mapping)
        and isinstance(told.get("order"), str)
        and (
            set(told) == {"loader", "order", "done", "loop"}
            and all(_is_count(told[name]) for name in ("loader", "done", "loop"))
        )
    )


def _is_line(told: Any) -> bool:
    if not isinstance(told, Mapping) or not {"step", "epoch", "time"} <= set(told):
        return False
    return all(value is None or type(value) in (int, float) for value in told.values())


def _is_loader(told: Any) -> bool:
    if not isinstance(told, Mapping):
        return False
    sizes = told.get("batch_size", ""), told.get("samples", "")  # an IterableDataset has no number of samples
    return _is_count(told.get("epochs_begun")) and all(size is None or _is_count(size) for size in sizes)


def _is_account(told: Any) -> bool:
    counts = ("loader", "steps", "samples", "different")
    return (
        isinstance(told, Mapping)
        and set(told) == {*counts, "of_steps", "of_samples", "order"}
        and all(_is_count(told[name]) for name in counts)
        and all(told[name] is None or _is_count(told[name]) for name in ("of_steps", "of_samples"))
        and isinstance(told["order"], str)
    )


def _are_tallies(told: Any) -> bool:
    return (
        isinstance(told, Mapping)
        and set(told) == {"outside", "body"}
        and all(isinstance(made, list) and all(map(_is_sums, made)) for made in told.values())
    )


def _is_sums(told: Any) -> bool:
    return isinstance(told, Mapping) and all(
        isinstance(lanes, Mapping)
        and all(lane.isdecimal() and isinstance(pair, list) and _are_two_numbers(pair) for lane, pair in lanes.items())
        for lanes in told.values()
    )


def _are_two_numbers(pair: list[Any]) -> bool:
    return [type(one) for one in pair] == [float, float]


Result = TypeVar("Result")
COUNTERS = "the run"
"""The document that says where the run was."""
UNLIKE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, struct.error)
"""What reading a document raises that lockstep did not write."""


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
        except LockstepError:
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
        told = loads(read_regular(path, follow=False))
        documents, entries = dict(told["documents"]), dict(told["entries"])
        wrong = wrong_counters(plain(documents[COUNTERS]))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).", "Check the path.") from None
    except UNLIKE:
        wrong = "lockstep does not write such a file"
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
