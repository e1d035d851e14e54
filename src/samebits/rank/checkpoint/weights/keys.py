"""Whose weights are these: which part of a file fits a model, and if none does, how it differs. Pure functions.

A file may be flat or nested, with `module.` and `_orig_mod.` in front in any order. Names of a model are those of a
single device.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.rank.position.model_state import single_device_name

PREFERRED = ("", "model", "state_dict", "model_state_dict")
"""Where the weights of a model are usually found; any other key is taken when it is the only one that fits."""
MAX_DEPTH = 2
SHOWN = 5
"""This many names are listed for each kind of difference."""
EXTRA_STATE = "_extra_state"
WRAPPED = "module."


@dataclass(frozen=True)
class Wanted:
    """What a model has."""

    tensors: Mapping[str, Tensor]
    others: Mapping[str, Any] = field(default_factory=dict)
    tied: Sequence[Sequence[str]] = ()
    """Groups of names that are one tensor; a file may leave out all but one of each."""


@dataclass(frozen=True)
class Fit:
    """How one part of a file fits a model."""

    key: str
    """Where in the file: "" for the whole, "model" or "checkpoint.model"."""
    values: Mapping[str, Any]
    """By single-device name; those of the model's tied names are filled in."""
    missing: list[str]
    unexpected: list[str]
    reshaped: list[str]
    num_common: int

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.unexpected or self.reshaped)


def parts_of(loaded: Any) -> dict[str, Mapping[str, Any]]:
    """Every mapping in a file that holds tensors by name, by its key."""
    return dict(_parts(loaded, "", MAX_DEPTH))


def _parts(value: Any, key: str, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(value, Mapping):
        return
    named = {name: item for name, item in value.items() if isinstance(name, str)}
    flat = {name: item for name, item in named.items() if isinstance(item, Tensor) or name.endswith(EXTRA_STATE)}
    if any(isinstance(item, Tensor) for item in flat.values()):
        yield key, flat
    if depth:
        for name, item in named.items():
            yield from _parts(item, f"{key}.{name}" if key else name, depth - 1)


def _without_prefixes(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """`values` by names without `_orig_mod`, then without one `module.` after the other while all have it."""
    found = {single_device_name(name): value for name, value in values.items()}
    yield found
    while found and all(name.startswith(WRAPPED) for name in found):
        found = {name.removeprefix(WRAPPED): value for name, value in found.items()}
        yield found


def fit_of(key: str, values: Mapping[str, Any], wanted: Wanted) -> Fit:
    """How the part `values` fits, with as many `module.` taken off as fit best."""
    fits = [_fit(key, found, wanted) for found in _without_prefixes(values)]
    return max(fits, key=lambda fit: (fit.is_exact, fit.num_common))


def _fit(key: str, found: dict[str, Any], wanted: Wanted) -> Fit:
    found = dict(found)
    for group in wanted.tied:
        present = [name for name in group if name in found]
        for name in group:
            if present and name not in found:
                found[name] = found[present[0]]
    names = [*wanted.tensors, *wanted.others]
    common = [name for name in wanted.tensors if isinstance(found.get(name), Tensor)]
    reshaped = [
        f"{name} {tuple(found[name].shape)} for {tuple(wanted.tensors[name].shape)}"
        for name in common
        if found[name].shape != wanted.tensors[name].shape
    ]
    missing = [name for name in names if name not in found]
    unexpected = [name for name in found if name not in wanted.tensors and name not in wanted.others]
    return Fit(key, found, missing, unexpected, reshaped, len(common))


def different_ties(values: Mapping[str, Any], tied: Sequence[Sequence[str]]) -> tuple[str, str] | None:
    """Two names of one tensor of the model that have different values."""
    for first, *others in tied:
        for name in others:
            if name in values and not _same(values[name], values[first]):
                return name, first
    return None


def _same(one: Tensor, other: Tensor) -> bool:
    return (
        one is other
        or (one.data_ptr() == other.data_ptr() and one.stride() == other.stride())
        or torch.equal(one, other)
    )


def choose(parts: Mapping[str, Mapping[str, Any]], wanted: Wanted, key: str | None, file: str) -> Fit:
    """The part of the file to load.

    Raises:
        UsageError: when there is no such part, no tensor at all, or several parts fit and none has a usual name.
    """
    if not parts:
        raise UsageError(f"{file} holds no tensors by name.", "Save model.state_dict() and load that.")
    known = ", ".join(f'key="{name}"' for name in parts)
    if key is not None:
        if key not in parts:
            raise UsageError(f"{file} has no weights under {key!r}.", f"Use one of: {known}.")
        return fit_of(key, parts[key], wanted)
    fits = [fit_of(name, values, wanted) for name, values in parts.items()]
    best = max((fit.is_exact, fit.num_common) for fit in fits)
    fits = [fit for fit in fits if (fit.is_exact, fit.num_common) == best]
    usual = [fit for fit in fits if fit.key in PREFERRED]
    for several in (usual, fits):
        if len(several) == 1:
            return several[0]
    if not best[1]:
        return fits[0]
    keys = ", ".join(f'key="{fit.key}"' for fit in fits)
    raise UsageError(f"{file} holds several sets of weights that fit this model.", f"Say which with one of: {keys}.")


def differences(fit: Fit, wanted: Wanted, *, strict: bool) -> str:
    """What is wrong in words, the first few names of each kind; empty when nothing is."""
    lists = {"missing": fit.missing, "unexpected": fit.unexpected} if strict or not fit.num_common else {}
    lists["other shape"] = fit.reshaped
    said = [f"{what}: {_first(names)}" for what, names in lists.items() if names]
    if said and (renamed := renames(fit, wanted)):
        said.append(renamed)
    return "; ".join(said)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def renames(fit: Fit, wanted: Wanted) -> str:
    """Missing names that are in the file under another name, judged by shapes and spelling."""
    shapes = {name: fit.values[name].shape for name in fit.unexpected if isinstance(fit.values[name], Tensor)}
    found = []
    for name in fit.missing:
        if name in wanted.tensors:
            same = [other for other, shape in shapes.items() if shape == wanted.tensors[name].shape]
            found += [f"{name} may be {other} there" for other in difflib.get_close_matches(name, same, 1, 0.6)]
        if len(found) == 2:
            break
    return ", ".join(found)
