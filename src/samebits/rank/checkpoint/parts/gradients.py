"""Gradients that are left between two steps, in the file of a state: the next step may add to them.

A sparse one lies there whole, and its rows beside it: an optimizer of sparse gradients makes other bits of a whole one, or
refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.protocol.state_files.manifest import GRADIENTS
from samebits.rank.checkpoint.format.state import TensorSet
from samebits.rank.checkpoint.format.tensor_file import CODES, TensorFile
from samebits.rank.checkpoint.parts.part import UNCHANGED, Into, Part, Saved

ROWS = " (rows)"
"""What follows a parameter's name in the name of its gradient's rows."""


class Gradients(Part):
    """Only a state from inside an epoch has a file of them."""

    def save(self, into: Into) -> None:
        if not into.is_inside:
            return
        tensors = into.contents.files.setdefault(GRADIENTS, TensorSet())
        for model in self._run.loop_state.prepared.models:
            for parameter in model.parameters():
                name = into.names[id(parameter)]
                if parameter.grad is not None and not parameter.is_meta and name not in tensors.tensors:
                    add_gradient(tensors, name, parameter.grad, self._run.components.strategy.holder_of(parameter))

    def check(self, saved: Saved) -> None:
        if saved.is_inside != (GRADIENTS in saved.manifest.files):
            raise UsageError("its place inside an epoch and its gradients do not belong together.", UNCHANGED)
        self._found: list[tuple[Tensor, Tensor | None]] = []
        if not saved.is_inside or saved.waits:
            return
        models, names = self._run.loop_state.prepared.models, saved.names
        known = {names[id(one)]: one for model in models for one in model.parameters()}
        found = saved_gradients(saved.files[GRADIENTS], known, UNCHANGED)
        self._found = [(one, found.get(name)) for name, one in known.items() if not one.is_meta]

    def load(self) -> None:
        for parameter, gradient in self._found:
            parameter.grad = None if gradient is None else gradient.to(parameter.device)


def add_gradient(tensors: TensorSet, name: str, gradient: Tensor, holder: int | None = None) -> None:
    """Add one gradient."""
    if gradient.layout is torch.sparse_coo and gradient.sparse_dim() == 1:
        gradient = gradient.coalesce()
        tensors.add(f"{name}{ROWS}", gradient.indices()[0], holder)
    tensors.add(name, gradient.to_dense(), holder)


def saved_gradients(file: TensorFile, parameters: Mapping[str, Tensor], unchanged: str) -> dict[str, Tensor]:
    """The gradients in a file, as they were, by the names of their `parameters`.

    Raises:
        UsageError: when one fits no parameter.
    """
    found, rows = {}, {}
    for name, record in file.described.items():
        of = name.removesuffix(ROWS) if name not in parameters else name
        if of not in parameters or of not in file.described:
            raise UsageError(f"its gradient {name} fits no parameter.", unchanged)
        shape, code = tuple(parameters[of].shape), CODES[parameters[of].dtype]
        if of == name and (record.shape, record.code) == (shape, code):
            found[name] = file.get(name).clone()
        elif of != name and record.code == CODES[torch.int64] and _are_rows(file.get(name), shape):
            rows[of] = file.get(name).clone()
        else:
            raise UsageError(f"its gradient {name} fits no parameter.", unchanged)
    return {name: _by_rows(one, rows[name]) if name in rows else one for name, one in found.items()}


def _are_rows(index: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether these are numbers of rows of a tensor of that shape, ascending."""
    if index.dim() != 1 or not shape:
        return False
    inside = bool(((index >= 0) & (index < shape[0])).all())
    return inside and bool((index[1:] > index[:-1]).all())


def _by_rows(whole: Tensor, index: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(
        index[None], whole[index], whole.shape, is_coalesced=True, check_invariants=False, device=whole.device
    )
