"""Weights in files: safetensors with the keys of a single device, readable without lockstep."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lockstep.errors import UsageError, WorldError

COMPILED = "_orig_mod."
"""What `torch.compile` puts before the names of the module that it wraps, the model or a part of it."""


def write_weights(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write `model.state_dict()` atomically: after a crash there is the old file or the new one, never a part.

    Tied weights are written under each of their names, so that a strict `load_state_dict` works anywhere.

    Raises:
        WorldError: when the file cannot be written.
    """
    target = Path(path)
    state = single_device_state(model)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}, temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise WorldError(f"The weights could not be written to {target}: {error}") from error


def single_device_state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of `model.state_dict()` by the names that they have before `torch.compile` wraps the model."""
    state = model.state_dict().items()
    return {name.replace(COMPILED, ""): tensor for name, tensor in state if isinstance(tensor, Tensor)}


def load_weights(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load a safetensors file into `model`, in place, on whatever device its tensors are. Every rank may call it.

    Raises:
        UsageError: when the file is missing or no safetensors file, or its keys or shapes are those of another model.
    """
    try:
        loaded = load_file(path)
    except FileNotFoundError:
        raise UsageError(f"There is no file {os.fspath(path)}.") from None
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{os.fspath(path)} is not a readable safetensors file ({error}).") from None
    own = single_device_state(model)
    if problems := _differences(own, loaded):
        raise UsageError(f"{os.fspath(path)} holds the weights of another model: {problems}.")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(loaded[name])


def _differences(own: dict[str, Tensor], loaded: dict[str, Tensor]) -> str:
    lists = {
        "missing": [name for name in own if name not in loaded],
        "unexpected": [name for name in loaded if name not in own],
        "other shape": [
            f"{name} {tuple(loaded[name].shape)} for {tuple(own[name].shape)}"
            for name in own
            if name in loaded and own[name].shape != loaded[name].shape
        ],
    }
    return "; ".join(
        f"{what}: {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        for what, names in lists.items()
        if names
    )
