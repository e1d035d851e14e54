"""What a state is: where the run was, who wrote it, what is in it. For `lockstep checkpoint show`."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.checkpoint.manifest import CHANGED, GRADIENTS, MODEL_FILE, OLDER, Manifest
from lockstep.checkpoint.whole_state import open_state
from lockstep.errors import UsageError
from lockstep.states.accounts import Account, accounts_of
from lockstep.states.documents import PLACE, STREAMS, Documents, read_documents
from lockstep.states.summary import hash_of, incomplete, saved_at
from lockstep.states.tensor_table import TensorTable, read_table

WRITERS = ("strategy", "ranks", "lanes", "threads", "seed")
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Tensors:
    """The tensors of one file, counted."""

    tensors: int
    elements: int
    size_bytes: int
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, table: TensorTable) -> Tensors:
        """Count a file's."""
        rows = table.rows
        return cls(
            len(rows),
            sum(row.num_elements for row in rows),
            sum(row.size_bytes for row in rows),
            tuple(sorted({row.dtype for row in rows})),
        )


@dataclass(frozen=True)
class ModelPart:
    """One model."""

    name: str
    tensors: Tensors
    trained: int
    """Elements of the parameters that an optimizer of the state updates; the others are buffers, or frozen."""


@dataclass(frozen=True)
class OptimizerPart:
    """One optimizer."""

    name: str
    kind: str
    groups: tuple[dict[str, Any], ...]
    """By group: the number of `parameters`, and its `lr` if it has one."""
    tensors: Tensors


@dataclass(frozen=True)
class InsideEpoch:
    """The place inside an epoch."""

    loader: int
    """Which of the prepared loaders, from 1."""
    order: str
    """The digest of the epoch's order."""
    steps: int
    """How many are done."""
    samples: int | None
    """How many these steps used; None where the loader has no batch size."""
    of_samples: int | None
    """None where the data set does not tell."""
    goes_on_by: str
    """How a run that goes on comes to this place: `order`, `state_dict` or `reading`."""


@dataclass(frozen=True)
class FilePart:
    """One file."""

    name: str
    size_bytes: int
    sha256: str
    tensors: int


@dataclass(frozen=True)
class Description:
    """Everything that `show` says."""

    path: str
    saved: str | None
    sha256: str
    counters: Mapping[str, Any]
    inside: InsideEpoch | None
    epochs: tuple[Account, ...]
    """Which samples the epochs have used, in order."""
    written_by: Mapping[str, Any]
    """The manifest's facts: strategy, ranks, lanes, threads, seed."""
    versions: Mapping[str, Any]
    models: tuple[ModelPart, ...]
    optimizers: tuple[OptimizerPart, ...]
    schedulers: tuple[tuple[str, str], ...]
    """Names and classes."""
    named: tuple[tuple[str, str], ...]
    """What the script named: the name, and `object` or `value`."""
    streams: Mapping[str, tuple[str, ...]]
    """Whose random numbers are kept: torch, numpy, python, device. Of an epoch that has begun, twice."""
    gradients: Tensors | None
    not_finite: str
    """A tensor that is not finite; empty where all are that should be."""
    files: tuple[FilePart, ...]

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        told: dict[str, Any] = finite(asdict(self))
        return told


def describe(path: Path) -> Description:
    """Read a state's manifest, documents and headers; the hash of the tensors is not computed.

    Raises:
        UsageError: when it is damaged as far as this can tell, or is not what lockstep writes.
    """
    place, manifest = open_state(path)
    if problem := incomplete(place, manifest):
        raise problem
    documents = read_documents(place, manifest)
    tables = {name: read_table(place / name) for name in manifest.files if name.endswith(SUFFIX)}
    for name, table in tables.items():
        if {row.name for row in table.rows} != set(manifest.files[name].tensors) or not table.is_filled:
            raise UsageError(f"{place / name} is damaged: it does not hold the tensors that were saved.", OLDER)
    try:
        return _description(path, place, manifest, documents, tables)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, struct.error):
        raise UsageError(f"{path} is not what lockstep writes.", CHANGED) from None


def _description(
    path: Path, place: Path, manifest: Manifest, documents: Documents, tables: Mapping[str, TensorTable]
) -> Description:
    counters = documents.counters
    fingerprint = manifest.facts.get("fingerprint")
    return Description(
        path=str(path),
        saved=saved_at(place),
        sha256=hash_of(manifest),
        counters={name: counters[name] for name in ("step", "epoch", "epochs_seen", "num_losses", "loss", "loaders")},
        inside=_inside(documents),
        epochs=accounts_of(counters),
        written_by={name: manifest.facts.get(name) for name in WRITERS},
        versions=fingerprint if isinstance(fingerprint, Mapping) else {},
        models=_models(documents, tables),
        optimizers=tuple(
            OptimizerPart(label, str(told["class"]), _groups(told), Tensors.of(tables[label + SUFFIX]))
            for label, told in documents.labelled("optimizer")
        ),
        schedulers=tuple((label, str(told["class"])) for label, told in documents.labelled("scheduler")),
        named=tuple((name, "object" if is_object else "value") for name, is_object in documents.named()),
        streams={
            label: tuple(kind for kind, told in documents.by_label[label].items() if told is not None)
            for label in STREAMS
            if label in documents.by_label
        },
        gradients=Tensors.of(tables[GRADIENTS]) if GRADIENTS in tables else None,
        not_finite=manifest.not_finite,
        files=tuple(
            FilePart(name, file.size, file.sha256, len(file.tensors)) for name, file in sorted(manifest.files.items())
        ),
    )


def _inside(documents: Documents) -> InsideEpoch | None:
    counters = documents.counters
    told, account = counters.get("inside"), counters.get("account")
    if told is None:
        return None
    loader = counters["loaders"][told["loader"]]
    samples, batch = loader["samples"], loader.get("batch_size")
    if account is not None:
        used = account["samples"]
    else:
        used = None if batch is None or samples is None else min(told["done"] * batch, samples)
    by = "order" if samples is not None else "state_dict" if PLACE in documents.by_label else "reading"
    return InsideEpoch(told["loader"] + 1, told["order"], told["done"], used, samples, by)


def _models(documents: Documents, tables: Mapping[str, TensorTable]) -> tuple[ModelPart, ...]:
    files = sorted(name for name in tables if MODEL_FILE.fullmatch(name))
    trained = {
        name for _, told in documents.labelled("optimizer") for group in told["groups"] for name in group["params"]
    }
    parts = []
    for number, file in enumerate(files, 1):
        prefix = f"{number}/" if len(files) > 1 else ""  # as optimizers name the parameters of several models
        elements = sum(row.num_elements for row in tables[file].rows if prefix + row.name in trained)
        parts.append(ModelPart(file.removesuffix(SUFFIX), Tensors.of(tables[file]), elements))
    return tuple(parts)


def _groups(told: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "parameters": len(group["params"]),
            "lr": rate if isinstance(rate := group["options"].get("lr"), float) else None,
        }
        for group in told["groups"]
    )


def finite(value: Any) -> Any:
    """For JSON: numbers that it cannot express as texts."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
