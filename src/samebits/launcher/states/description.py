"""What a state is, as values of JSON: a row of `samebits checkpoint ls`, all that `show` prints, and what `verify` finds.

Plain Python: the header of a file of tensors is read by the safetensors library, which needs no torch for it, and refuses one that
lies about sizes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from samebits.errors import SamebitsError, UsageError
from samebits.launcher.states.places import Found
from samebits.protocol.state_files.folder import TRIES, identity_of
from samebits.protocol.state_files.manifest import (
    CHANGED,
    GRADIENTS,
    NAME,
    OLDER,
    Manifest,
    NewerState,
    damage_of,
    problem_of,
)
from samebits.protocol.state_files.whole_state import COUNTERS, UNLIKE, documents_of, open_state, plain

COMPLETE, DAMAGED, NEWER = "complete", "damaged", "newer"
SUFFIX = ".safetensors"
STREAMS = "random numbers"
PLACE = "place of the data set"
_WRITERS = ("strategy", "ranks", "lanes", "threads", "seed")
_COUNTERS = ("step", "epoch", "epochs_seen", "num_losses", "loss", "loaders")
_UNKNOWN = dict.fromkeys(("step", "epochs", "saved", "size_bytes", "sha256"))
"""What a damaged manifest no longer has."""
Json = dict[str, Any]


def summary_of(found: Found) -> Json | None:
    """A row of `ls`: what the manifest has, and whether the files are there with their sizes. None when it was removed meanwhile.

    `files` is complete, damaged or newer (a later samebits wrote it).
    """
    row = {"run": found.run, "path": str(found.path), **_UNKNOWN, "inside_epoch": False, "not_finite": ""}
    try:
        place, manifest = open_state(found.path)
    except SamebitsError as error:
        files = NEWER if isinstance(error, NewerState) else DAMAGED
        return {**row, "files": files, "problem": problem_of(error)} if found.path.exists() else None
    lacking = _incomplete(place, manifest)
    if lacking is not None and not place.exists():
        return None
    return {
        **row,
        "step": _count(manifest.facts.get("step")),
        "epochs": _count(manifest.facts.get("epochs")),
        "inside_epoch": GRADIENTS in manifest.files,
        "saved": _saved_at(place),
        "size_bytes": sum(file.size for file in manifest.files.values()),
        "sha256": _hash_of(manifest),
        "files": DAMAGED if lacking else COMPLETE,
        "problem": problem_of(lacking) if lacking else "",
        "not_finite": manifest.not_finite,
    }


def newest(states: list[Found]) -> Found:
    """The state of the highest step; where the manifests say nothing, the last by name. At least one must be given."""

    def step_of(path: Path) -> int:
        with suppress(SamebitsError):
            return _count(open_state(path)[1].facts.get("step")) or 0
        return -1

    return max(states, key=lambda one: (step_of(one.path), one.path.name))


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _incomplete(place: Path, manifest: Manifest) -> UsageError | None:
    """The first file that is missing or has another size."""
    problems = (damage_of(place / name, file, reads=False) for name, file in manifest.files.items())
    return next(filter(None, problems), None)


def _hash_of(manifest: Manifest) -> str:
    """A SHA-256 of the files' own: equal for states with the same content, whatever ranks wrote them."""
    files = {name: file.sha256 for name, file in manifest.files.items()}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _saved_at(place: Path) -> str | None:
    """When the manifest was written, in this machine's time."""
    try:
        return datetime.fromtimestamp((place / NAME).stat().st_mtime).astimezone().isoformat(timespec="seconds")
    except (OSError, ValueError, OverflowError):
        # A time outside of what a calendar has.
        return None


@dataclass(frozen=True)
class Header:
    """One tensor, as the header of its file has it."""

    name: str
    dtype: str
    """As safetensors calls it: F32, BF16, I64."""
    elements: int


def describe(path: Path) -> Json:
    """All that `show` prints: the manifest, the documents and headers; the hash of the tensors is not computed.

    Raises:
        UsageError: when it is damaged as far as this can see, or is not what samebits writes.
    """
    place, manifest = open_state(path)
    if problem := _incomplete(place, manifest):
        raise problem
    documents, _ = documents_of(place, manifest)
    headers = {}
    for name in manifest.files:
        if name.endswith(SUFFIX):
            headers[name] = headers_of(place / name)
            if {one.name for one in headers[name]} != {*manifest.files[name].tensors}:
                raise UsageError(f"{place / name} is damaged: it does not hold the tensors that were saved.", OLDER)
    try:
        counters = plain(documents[COUNTERS])
        record: Json = {"path": str(path), "saved": _saved_at(place), "sha256": _hash_of(manifest)}
        record["counters"] = {name: counters[name] for name in _COUNTERS}
        record["inside"] = _inside(counters, documents)
        record |= {**_facts(manifest, headers), "epochs": _epochs(counters), **_objects(documents)}
        return {key: _finite(value) for key, value in record.items()}
    except UNLIKE:
        raise UsageError(f"{path} is not what samebits writes.", CHANGED) from None


def headers_of(path: Path) -> list[Header]:
    """The tensors of a file, which is regular and may be damaged. Raises `UsageError`."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - `ls` needs neither it nor NumPy

    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return [Header(name, one.get_dtype(), math.prod(one.get_shape())) for name, one in slices.items()]
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} has no sound header of a safetensors file ({error}).", OLDER) from None


def _facts(manifest: Manifest, headers: Mapping[str, Sequence[Header]]) -> Json:
    """Who wrote it, and its files."""

    def tensors(name: str) -> Json:
        found = headers.get(name, ())
        return {"elements": sum(one.elements for one in found), "dtypes": sorted({one.dtype for one in found})}

    versions = manifest.facts.get("fingerprint")
    return {
        "written_by": {name: manifest.facts.get(name) for name in _WRITERS},
        "versions": versions if isinstance(versions, Mapping) else {},
        "not_finite": manifest.not_finite,
        "files": [
            {"name": name, "size_bytes": f.size, "tensors": len(f.tensors), **tensors(name), "sha256": f.sha256}
            for name, f in sorted(manifest.files.items())
        ],
    }


def _inside(counters: Json, documents: Json) -> Json | None:
    """The place inside an epoch: which loader, from 1, and how many steps and samples of it are done."""
    if (inside := counters.get("inside")) is None:
        return None
    loader, account = counters["loaders"][inside["loader"]], counters.get("account")
    samples, batch = loader["samples"], loader.get("batch_size")
    used = None if batch is None or samples is None else min(inside["done"] * batch, samples)
    return {
        "loader": inside["loader"] + 1,
        "steps": inside["done"],
        "samples": used if account is None else account["samples"],
        "of_samples": samples,
        "order": inside["order"],
        "goes_on_by": "order" if samples is not None else "state_dict" if PLACE in documents else "reading",
    }


def _epochs(counters: Json) -> list[Json]:
    """What the epochs used that are over, and the one that the state is in; older states have none."""
    record = [{**one, "is_over": True} for one in counters.get("accounts", [])]
    begun = [loader["epochs_begun"] for loader in counters["loaders"]]
    if (now := counters.get("account")) is not None:
        record.append({**now, "is_over": False})
        begun[now["loader"]] += 1  # the epoch that the state is in begins anew in a run that resumes
    rows: list[Json] = []
    for one in reversed(record):
        row = {"epoch": begun[one["loader"]], **one, "loader": one["loader"] + 1}
        rows.insert(0, {**row, "each_once": one["different"] == one["samples"]})
        begun[one["loader"]] -= 1
    return rows


def _objects(documents: Json) -> Json:
    """Optimizers, schedulers, and what the script named."""

    def labelled(kind: str) -> list[tuple[str, Any]]:
        """`optimizer`, or `optimizer1`, `optimizer2` where there are several."""
        return [(label, one) for label, one in documents.items() if label.rstrip("0123456789") == kind]

    def group_of(group: Any) -> Json:
        rate = group["options"].get("lr")
        return {"parameters": len(group["params"]), "lr": rate if isinstance(rate, float) else None}

    return {
        "optimizers": [
            {"name": label, "kind": str(one["class"]), "groups": [group_of(group) for group in one["groups"]]}
            for label, one in labelled("optimizer")
        ],
        "schedulers": [[label, str(one["class"])] for label, one in labelled("scheduler")],
        "named": [
            [label[:-1], "object" if one["object"] else "value"]
            for label, one in documents.items()
            if label.endswith("=")
        ],
        "streams": {STREAMS: [kind for kind, one in documents[STREAMS].items() if one is not None]},
    }


def _finite(value: Any) -> Any:
    """For JSON: numbers that it cannot express as texts."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def examine(found: Found) -> Json | None:
    """Read every byte of a state; again, when another program replaced it meanwhile. None when one removed it.

    `damages` has each damaged file and what is wrong with it; `others` what is in the folder and not in the manifest.

    Raises:
        NewerState: when a later samebits wrote it, so this one cannot know.
    """
    for _ in range(TRIES):
        before = identity_of(found.path)
        examined = _examined(found)
        if examined["whole"] or before == identity_of(found.path):
            break
    return examined if examined["whole"] or found.path.exists() else None


def _examined(found: Found) -> Json:
    damages: list[Json] = []
    others: list[str] = []
    manifest = Manifest({}, {})
    try:
        place, manifest = open_state(found.path)
        problems = {name: damage_of(place / name, file) for name, file in sorted(manifest.files.items())}
        damages = [{"file": name, "problem": one.problem} for name, one in problems.items() if one is not None]
        with suppress(OSError):
            others = sorted(one.name for one in place.iterdir() if one.name not in (NAME, *manifest.files))
        if not damages:  # every hash fits: has somebody changed the state and sealed it again?
            describe(found.path)
    except NewerState:
        raise
    except SamebitsError as error:
        damages = [{"file": "" if manifest.files else NAME, "problem": problem_of(error)}]
    size = sum(file.size for file in manifest.files.values())
    record = {"run": found.run, "path": str(found.path), "files": len(manifest.files), "size_bytes": size}
    return {**record, "whole": not damages, "damages": damages, "others": others, "not_finite": manifest.not_finite}
