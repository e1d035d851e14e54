"""A model as tensors with single-device names, and back into the model in place.

`torch.compile`, DDP and DataParallel wrap a model and put words into its names; they are taken out, so a file does not
depend on whether and when the model was compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from samebits.errors import UsageError

COMPILED = "_orig_mod"


def single_device_name(name: str) -> str:
    """`name` without what torch.compile puts into it."""
    return ".".join(part for part in name.split(".") if part != COMPILED) if COMPILED in name else name


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module below torch.compile, DDP and DataParallel."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, COMPILED, None), nn.Module):
            model = inner
        else:
            return model


@dataclass(frozen=True)
class ModelState:
    """What a model's `state_dict` holds."""

    model: nn.Module
    """Unwrapped."""
    tensors: dict[str, Tensor]
    """By single-device name, in the order of the `state_dict`; the parameters and buffers themselves where it has them."""
    others: dict[str, Any]
    """What is not a tensor (`get_extra_state`)."""
    names: dict[str, str]
    """From single-device names to those of the `state_dict`."""

    @classmethod
    def of(cls, model: nn.Module) -> ModelState:
        """Read a model's state. Raises `UsageError` for anything else: a `state_dict`, or arguments in wrong order."""
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"The model must be an nn.Module, but is of type {type(model).__name__}.",
                "Pass the model itself: its state_dict() is not enough.",
            )
        inner = unwrapped(model)
        state = inner.state_dict(keep_vars=True)
        names = {single_device_name(name): name for name in state}
        values = {name: state[own] for name, own in names.items()}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        others = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
        return cls(inner, tensors, others, names)

    @property
    def is_plain(self) -> bool:
        """Whether every value of the `state_dict` is a parameter or buffer of the model, and so can be written to."""
        own = {id(tensor) for tensor in [*self.model.parameters(), *self.model.buffers()]}
        return not self.others and all(id(tensor) in own for tensor in self.tensors.values())

    def tied(self) -> list[list[str]]:
        """Groups of names of the same tensor."""
        groups: dict[int, list[str]] = {}
        for name, tensor in self.tensors.items():
            groups.setdefault(id(tensor), []).append(name)
        return [group for group in groups.values() if len(group) > 1]

    def place(self, values: Mapping[str, Tensor], others: Mapping[str, Any] | None = None) -> None:
        """Write `values` (checked: own names, own shapes) into the model, in place; tensors on "meta" are skipped.

        A model whose `state_dict` is made by code of its own is loaded by its own `load_state_dict`; when that raises,
        the model gets back what it had.
        """
        if self.is_plain:
            with torch.no_grad():
                for name, value in values.items():
                    if not self.tensors[name].is_meta:
                        self.tensors[name].copy_(value)
            return
        before = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
        given = {name: value for name, value in values.items() if not self.tensors[name].is_meta}
        try:
            self._load({**given, **(others or {})})
        except Exception as error:
            self._load(before)
            raise UsageError(
                f"{type(self.model).__name__}.load_state_dict refused: {error}", "Prepare the model that was saved."
            ) from error

    def _load(self, values: Mapping[str, Any]) -> None:
        self.model.load_state_dict({self.names[name]: value for name, value in values.items()}, strict=False)


def refuse_renamed(label: str, state: ModelState, names: Collection[str], late: Collection[int]) -> None:
    """Raise `UsageError` where a start that resumes, whose models have the names of `prepare`, could not load this state.

    Args:
        label: the model's, for the sentence.
        state: what is saved.
        names: the tensors of the model's state when it was prepared.
        late: identities of tensors of modules that were prepared since, which such a start makes anew.
    """
    strange = [name for name, tensor in state.tensors.items() if name not in names and id(tensor) not in late]
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise UsageError(
            f"{label} has {strange[0]}{more}, which it had not when it was prepared, so its state could not be loaded again.",
            "Make the model's parameters and buffers before run.prepare. For pruning, call "
            "`torch.nn.utils.prune.identity(module, 'weight')` there: what is pruned later then changes values only.",
        )


def infinite_parts(model: nn.Module) -> list[str]:
    """The single-device names of buffers and frozen parameters that are not finite: what is so from the beginning may stay so."""
    inner = unwrapped(model)
    fixed = [one for one in inner.named_parameters(remove_duplicate=False) if not one[1].requires_grad]
    return [
        single_device_name(name)
        for name, tensor in [*fixed, *inner.named_buffers(remove_duplicate=False)]
        if not tensor.is_meta and _may_be_infinite(tensor) and not _is_finite(tensor)
    ]


def _is_finite(tensor: Tensor) -> bool:
    """Without a copy of the tensor's size, of which a GPU may have no room: NaN and infinities pass through both ends."""
    ends = torch.aminmax(torch.view_as_real(tensor) if tensor.is_complex() else tensor.detach())
    return bool(torch.isfinite(ends.min) & torch.isfinite(ends.max))


def _may_be_infinite(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and tensor.layout is torch.strided and (tensor.is_floating_point() or tensor.is_complex())
