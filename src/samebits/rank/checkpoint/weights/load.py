"""`samebits.load_weights`: anybody's weight file into a model, all of it or nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.machine.held_folder import TemporaryFolder
from samebits.notices import say
from samebits.protocol.run_folder import COPY
from samebits.protocol.state_files.folder import StateFolder, is_state, left_between
from samebits.protocol.state_files.manifest import MODEL_FILE, Manifest, damage_of
from samebits.protocol.state_files.remote_state import fetch_weights, named
from samebits.protocol.state_files.whole_state import settled
from samebits.protocol.url import is_url
from samebits.rank.checkpoint.weights.keys import Wanted, choose, differences, different_ties, parts_of
from samebits.rank.checkpoint.weights.torch_file import read_weight_file
from samebits.rank.position.model_state import ModelState


def checked_source(path: Path) -> Path:
    """The file to read: for a state the one with its model, else `path` itself.

    Every byte of a file that a state's manifest names is read and compared with its SHA-256; again, when a program that saves
    replaced the state meanwhile.

    Raises:
        UsageError: when it is damaged, or the state has several models.
        EnvironmentFailure: when the manifest cannot be read.
    """
    return settled(path, lambda: _checked(path))


def _checked(path: Path) -> Path:
    if is_state(path) or not os.path.lexists(path):
        place, name = path, ""
    elif path.is_file() and is_state(path.parent):
        place, name = path.parent, path.name
    else:
        return path
    state = StateFolder(place)
    found = state.read_manifest()
    if found is None:
        return path
    folder, manifest = found
    if folder != state.target:
        say(left_between(state.target, folder))
    name = name or _model_of(folder, manifest)
    expected = manifest.files.get(name)
    if expected is not None and (problem := damage_of(folder / name, expected)):
        raise problem
    return folder / name


def _model_of(folder: Path, manifest: Manifest) -> str:
    names = [name for name in manifest.files if MODEL_FILE.fullmatch(name)]
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError(f"{folder} has no model.", "Name a file of weights.")
    which = ", ".join(str(folder / name) for name in names)
    raise UsageError(f"{folder} holds {len(names)} models.", f"Name one of them: {which}.")


_places: dict[str, Path] = {}


def put_elsewhere(path: str | os.PathLike[str], place: Path) -> Path:
    """Remember that what the script calls `path` is written to `place`, which is returned."""
    _places[_key(path)] = place
    return place


def found_at(path: str | os.PathLike[str]) -> Path:
    """Where to read what the script calls `path`: elsewhere, if something was put there, else where it says."""
    place = _places.get(_key(path)) if _places else None
    return place if place is not None and place.exists() else Path(path)


def _key(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - a name only, even of what does not exist


@dataclass(frozen=True)
class LoadedWeights:
    """What `load_weights` did."""

    key: str
    """Where in the file the weights were; "" when the file is flat."""
    missing_keys: list[str]
    """Names that only the model has; they kept their values. Empty when strict."""
    unexpected_keys: list[str]
    """Names that only the file has. Empty when strict."""
    cast: list[str]
    """Names whose dtype differs; their values were rounded to the model's."""


def load_weights(
    model: nn.Module, path: str | os.PathLike[str], *, key: str | None = None, strict: bool = True
) -> LoadedWeights:
    """Load a weight file into `model`, in place, on whatever device its tensors are. Any rank may call it, even alone.

    The file is safetensors or was written by `torch.save`, as its content shows; it is flat or nested under a key, and
    its names may have `module.` and `_orig_mod.` in front. `model` too may be wrapped in DDP or compiled. A folder of
    `run.save_state` works too; its file is compared with the SHA-256 beside it. Nothing in a file is executed. When it
    raises, the model is as it was.

    Args:
        model: its tensors on the meta device are skipped.
        path: the file, or a URL of one; each rank that calls this reads it from there.
        key: the part of a nested file, such as "ema" or "checkpoint.model"; by default the one that fits.
        strict: whether every name must be on both sides. Shapes must be equal in any case.

    Returns:
        What was loaded; its `missing_keys` and `unexpected_keys` are those of `load_state_dict`.

    Raises:
        UsageError: when the file is missing, damaged, hostile, of another model, or at a URL that cannot be read.
    """
    place = found_at(path)
    if place == Path(path) and is_url(path):
        with TemporaryFolder(COPY) as room:
            url = os.fspath(path)
            copy = fetch_weights(url, room)
            with named(copy, url):
                return _load(model, copy, key, strict=strict)
    return _load(model, place, key, strict=strict)


def _load(model: nn.Module, place: Path, key: str | None, *, strict: bool) -> LoadedWeights:
    file = checked_source(place)
    state = ModelState.of(model)
    if state.tensors and all(tensor.is_meta for tensor in state.tensors.values()):
        raise UsageError("The model is on the meta device.", "Call model.to_empty(device=...) before load_weights.")
    wanted = Wanted(state.tensors, state.others, state.tied())
    fit = choose(parts_of(read_weight_file(file)), wanted, key, str(file))
    if problems := differences(fit, wanted, strict=strict):
        under = f" (under {fit.key!r})" if fit.key else ""
        raise UsageError(
            f"{file}{under} holds the weights of a different model: {problems}.",
            "Load it into the model that it was saved from, or name the part to load with key=.",
        )
    values = {name: fit.values[name] for name in wanted.tensors if name in fit.values}
    cast = _check_values(values, wanted, str(file))
    state.place(values, {name: fit.values[name] for name in wanted.others if name in fit.values})
    return LoadedWeights(fit.key, list(fit.missing), list(fit.unexpected), cast)


def _check_values(values: Mapping[str, Any], wanted: Wanted, file: str) -> list[str]:
    """Refuse what cannot be copied without loss of meaning, before anything is copied; returns the names to cast."""
    if pair := different_ties(values, wanted.tied):
        raise UsageError(
            f"{file} has different values for {' and '.join(pair)}, which are one tensor in this model.",
            "Load a file of a model in which they are tied too, or untie them here.",
        )
    cast = []
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise UsageError(
                f"{name} in {file} is not a plain tensor (sparse, quantised or without values).",
                "Save a dense tensor in its place.",
            )
        target = wanted.tensors[name]
        if value.dtype != target.dtype:
            _check_cast(name, value, target, file)
            cast.append(name)
    return cast


def _check_cast(name: str, value: Tensor, target: Tensor, file: str) -> None:
    """Refuse a different kind of dtype, or a value that would become infinite or wrap; rounding is fine."""
    said = f"{name} is {value.dtype} in {file} and {target.dtype} in the model".replace("torch.", "")
    if value.is_complex() != target.is_complex() or value.is_floating_point() != target.is_floating_point():
        raise UsageError(
            f"{said}, which is not the same kind of dtype (float, integer, complex).", "Convert the file first."
        )
    if value.is_floating_point():
        if torch.finfo(target.dtype).max < torch.finfo(value.dtype).max:
            fits = bool((value.isfinite() == value.to(target.dtype).isfinite()).all())
            if not fits:
                raise UsageError(f"{said}, where some values are too large.", "Load into float32 or bfloat16.")
    elif not value.is_complex() and not torch.equal(value.to(target.dtype).to(value.dtype), value):
        raise UsageError(f"{said}, where some values do not fit.", "Convert the file first.")
