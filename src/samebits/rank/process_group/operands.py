"""The memory of one operation's tensors: addresses for the compiled part, contiguous copies where needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.machine.torch_private import FakeTensor
from samebits.rank.process_group.arguments import CollectiveMisused, tensors

_STRIDED = torch.strided
ONLY_ITSELF = Tensor.__torch_dispatch__
"""The dispatch of tensors with numbers of their own. Any other wraps tensors inside, and its address means nothing."""


class NoNumbers(CollectiveMisused):
    """A tensor has no numbers of its own in memory."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(
            f"This tensor is a {type(tensor).__name__}, which has no numbers of its own to exchange.",
            "Pass the tensor inside; for a DTensor, use .to_local().",
        )
        self.stands_for_others = not isinstance(tensor, FakeTensor) and not _is_dtensor(tensor)
        """Whether it may hand on the tensors inside when torch's dispatcher asks it."""


def _is_dtensor(tensor: Tensor) -> bool:
    # Importing this module takes half as long as importing torch.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def is_plain(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor are in this process's memory, one after the other and unchanged."""
    return (
        type(tensor).__torch_dispatch__ is ONLY_ITSELF
        and tensor.is_cpu
        and tensor.layout is _STRIDED
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def with_numbers(tensor: Tensor) -> Tensor:
    """The tensor, or the one that it stands in for: what functional collectives return is waited for.

    Raises:
        NoNumbers: for other tensors without numbers of their own (DTensor, FakeTensor, any wrapper).
    """
    # A functional collective's result may be inside another one's.
    while type(tensor).__torch_dispatch__ is not ONLY_ITSELF and hasattr(tensor, "trigger_wait"):
        tensor = tensor.trigger_wait()
    if type(tensor).__torch_dispatch__ is ONLY_ITSELF or not tensor.is_cpu or tensor.layout is not _STRIDED:
        return tensor
    if not _has_memory(tensor):
        raise NoNumbers(tensor)
    return tensor


def _has_memory(tensor: Tensor) -> bool:
    try:
        return not isinstance(tensor, FakeTensor) and (not tensor.numel() or tensor.untyped_storage().data_ptr() != 0)
    except RuntimeError:
        # torch raises for a storage that has no memory.
        return False


def check_device(tensor: Tensor) -> None:
    if not tensor.is_cpu:
        raise CollectiveMisused(
            f"The backend samebits exchanges CPU tensors, but this one is on {tensor.device}.",
            "Move it with .cpu(), or use a group of another backend for it.",
        )


def check_place(tensor: Tensor) -> None:
    """Refuse what has no numbers one after the other. Those of a GPU go through host memory: ranks that share one have this group.

    Raises:
        CollectiveMisused: for tensors on other devices, and sparse ones.
    """
    if not tensor.is_cuda:
        check_device(tensor)
    if tensor.layout is not _STRIDED:
        raise CollectiveMisused(f"This tensor has the layout {tensor.layout}.", "Use .to_dense() first.")


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share memory; False for those that are copied anyway."""
    return is_plain(one) and is_plain(other) and share_memory([one], [other])


def share_memory(*owners: Sequence[Tensor]) -> bool:
    """Whether tensors of different owners overlap; tensors with gaps may count as overlapping though they do not."""
    stretches = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + _extent(tensor), owner)
        for owner, tensors in enumerate(owners)
        for tensor in tensors
        if tensor.numel()
    )
    farthest, whose = 0, -1
    for first, end, owner in stretches:
        if first < farthest and owner != whose:
            return True
        if end > farthest:
            farthest, whose = end, owner
    return False


def _extent(tensor: Tensor) -> int:
    """From the first to the last of its numbers, in bytes."""
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def copy_of(tensor: Tensor) -> Tensor:
    """A new contiguous tensor with the same numbers."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor.detach())


def unspoilt(outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs of several operations that are one call; copies where an output of one overlaps the input of another.

    Args:
        outputs: those of each operation.
        inputs: the one of each.
    """
    given = [with_numbers(tensor) for tensor in inputs]
    owners = [[*map(with_numbers, some), tensor] for some, tensor in zip(outputs, given, strict=True)]
    return [copy_of(tensor) for tensor in given] if share_memory(*owners) else given


def _once(tensor: Tensor) -> Tensor:
    """An expanded tensor without the repetitions: its memory is written once."""
    if 0 not in tensor.stride():
        return tensor
    sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor[tuple(map(slice, sizes))]


class Buffers:
    """Keeps tensors alive until their operation is finished, and then copies results to where they belong."""

    __slots__ = ("_back", "_kept")

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._back: list[tuple[Tensor, Tensor]] = []

    def reads(self, tensor: Tensor) -> int:
        """The address of the tensor's numbers, or of a contiguous copy."""
        address = tensors().address(tensor)
        if address is not None:
            self._kept.append(tensor)
            return address
        if not is_plain(tensor):
            tensor = with_numbers(tensor)
            check_place(tensor)
            tensor = tensor.resolve_conj().resolve_neg().contiguous().cpu()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def writes(self, tensor: Tensor, *, also_reads: bool = False) -> int:
        """An address that the operation may write to; `copy_back` brings the result into the tensor.

        With `also_reads` the tensor's numbers are there already.
        """
        address = tensors().address(tensor)
        if address is not None:
            self._kept.append(tensor)
            return address
        if not is_plain(tensor) and not is_plain(tensor := with_numbers(tensor)):
            check_place(tensor)
            buffer = copy_of(tensor) if also_reads else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            self._back.append((tensor.detach(), buffer))
            tensor = buffer
        self._kept.append(tensor)
        return tensor.data_ptr()

    def replaces(self, buffer: Tensor, *targets: Tensor) -> int:
        """The address of a contiguous tensor for the operation; `copy_back` copies it into the targets, in turn."""
        for target in map(with_numbers, targets):
            check_place(target)
            self._back.append((target.detach(), buffer))
        self._kept.append(buffer)
        return buffer.data_ptr()

    def also(self, source: Tensor, targets: Sequence[Tensor]) -> None:
        """Copy the numbers of a tensor into others too, at the end."""
        self._back += [(target.detach(), source) for target in targets]

    def reads_all(self, tensors: Sequence[Tensor]) -> list[int]:
        return [self.reads(tensor) for tensor in tensors]

    def writes_all(self, tensors: Sequence[Tensor]) -> list[int]:
        return [self.writes(tensor) for tensor in tensors]

    def copy_back(self) -> None:
        """Copy results to where they belong. Call once the operation is finished."""
        for target, buffer in self._back:
            # Such a tensor may only be written in this mode.
            with torch.inference_mode(target.is_inference()):
                _once(target).copy_(buffer[tuple(map(slice, _once(target).shape))])
        self._back.clear()
        self._kept.clear()
