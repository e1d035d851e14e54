"""What a script prepares under numerics="portable": what no known answer speaks for is refused, or said once."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from samebits.errors import UsageError
from samebits.rank.init.random_streams import seed_process
from samebits.rank.portable.operators import refuse_uncovered
from samebits.rank.portable.process import hold

SHOWN = frozenset({torch.float32, torch.float64, torch.bfloat16})
FOREIGN = {
    "sklearn": "scikit-learn",
    "scipy": "SciPy",
    "cv2": "OpenCV",
    "numba": "Numba",
    "jax": "JAX",
    "PIL": "Pillow",
    "tensorflow": "TensorFlow",
}
"""Libraries with kernels of their own, by the names that they are imported by."""


def look_at(things: Iterable[Any]) -> list[str]:
    """Look at what `run.prepare` got, and refuse what was registered with torch since `samebits.init`.

    Returns:
        Sentences about what only the user can judge.

    Raises:
        UsageError: for a model in a precision for which it was not shown.
    """
    refuse_uncovered()
    return [sentence for thing in things for sentence in _look(thing)]


def _look(thing: Any) -> Iterator[str]:
    """Of one thing: a model, a loader, or anything else."""
    if isinstance(thing, nn.Module):
        _refuse_other_precisions(thing)
        if "_orig_mod" in dict(thing.named_children()):
            yield (
                'torch.compile compiles for the CPU that it finds, so under numerics="portable" the model runs without it.'
            )
    if isinstance(thing, DataLoader):
        for name in foreign_kernels(thing.dataset):
            yield (
                f"{type(thing.dataset).__name__} is written with {name}, whose kernels samebits does not hold: if samples are "
                "computed with it, they may differ from CPU to CPU. Compute them once, and load them from a file."
            )


def foreign_kernels(dataset: Any) -> list[str]:
    """The libraries with kernels of their own that the module imports in which a data set's class is written."""
    module = sys.modules.get(type(dataset).__module__)
    if module is None or module.__name__.partition(".")[0] in {"torch", "samebits"}:
        return []
    values = list(vars(module).values())
    tops = {
        str(getattr(value, "__module__", None) or getattr(value, "__name__", "")).partition(".")[0] for value in values
    }
    return sorted(FOREIGN[top] for top in tops & FOREIGN.keys())


def _refuse_other_precisions(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype not in SHOWN:
            raise UsageError(
                f'numerics="portable" is shown for float32, float64 and bfloat16, and {name} of {type(model).__name__} is '
                f"{str(parameter.dtype).removeprefix('torch.')}.",
                "Prepare the model in float32 or bfloat16.",
            )


def seed_held_process(key: int) -> None:
    """`seed_process` for a loader's workers, which may be fresh interpreters: they compute samples with the rank's kernels."""
    hold()
    seed_process(key)
