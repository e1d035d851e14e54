"""The memory of one operation's tensors: addresses for the compiled part, contiguous copies where they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.torch_private import FakeTensor
from lockstep.transport.collective_errors import CollectiveMisused

_STRIDED = torch.strided
ONLY_ITSELF = Tensor.__torch_dispatch__
"""What tensors have whose numbers are their own. Another one stands in for tensors inside, and its address means nothing."""


def is_plain(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor lie in this process's memory one after the other, as they are."""
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
        CollectiveMisused: for other tensors without numbers of their own (DTensor, FakeTensor, any wrapper).
    """
    while type(tensor).__torch_dispatch__ is not ONLY_ITSELF and hasattr(tensor, "trigger_wait"):
        tensor = tensor.trigger_wait()
    if type(tensor).__torch_dispatch__ is ONLY_ITSELF or not tensor.is_cpu or tensor.layout is not _STRIDED:
        return tensor
    if not _has_memory(tensor):
        raise CollectiveMisused(
            f"This tensor is a {type(tensor).__name__}, which has no numbers of its own to exchange. "
            f"Pass the tensor inside; of a DTensor that is .to_local()."
        )
    return tensor


def _has_memory(tensor: Tensor) -> bool:
    try:
        return not isinstance(tensor, FakeTensor) and (not tensor.numel() or tensor.untyped_storage().data_ptr() != 0)
    except RuntimeError:  # torch has nothing to show
        return False


def check_place(tensor: Tensor) -> None:
    """Refuse what is not in the memory of the process.

    Raises:
        CollectiveMisused: tensors on another device, and sparse ones.
    """
    if not tensor.is_cpu:
        raise CollectiveMisused(
            f"The back end lockstep exchanges CPU tensors, but this one is on {tensor.device}. "
            f"Move it with .cpu(), or use a group of another back end for it."
        )
    if tensor.layout is not _STRIDED:
        raise CollectiveMisused(f"This tensor has the layout {tensor.layout}. Use .to_dense() first.")


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share memory; False for those that are copied anyway."""
    if not is_plain(one) or not is_plain(other):
        return False
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes


class Buffers:
    """Keeps tensors alive until their operation is finished, and then copies results to where they belong."""

    __slots__ = ("_back", "_kept")

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._back: list[tuple[Tensor, Tensor]] = []

    def reads(self, tensor: Tensor) -> int:
        """The address of the tensor's numbers, or of a contiguous copy."""
        if not is_plain(tensor):
            tensor = with_numbers(tensor)
            check_place(tensor)
            tensor = tensor.resolve_conj().resolve_neg().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def writes(self, tensor: Tensor, *, also_reads: bool = False) -> int:
        """An address that the operation may write to; `copy_back` brings the result into the tensor.

        With `also_reads` the tensor's numbers stand there before.
        """
        if not is_plain(tensor) and not is_plain(tensor := with_numbers(tensor)):
            check_place(tensor)
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            if also_reads:
                buffer.copy_(tensor.detach())
            self._back.append((tensor.detach(), buffer))
            tensor = buffer
        self._kept.append(tensor)
        return tensor.data_ptr()

    def reads_all(self, tensors: Sequence[Tensor]) -> list[int]:
        return [self.reads(tensor) for tensor in tensors]

    def writes_all(self, tensors: Sequence[Tensor]) -> list[int]:
        return [self.writes(tensor) for tensor in tensors]

    def copy_back(self) -> None:
        """Call once the operation is finished."""
        for target, buffer in self._back:
            with torch.inference_mode(target.is_inference()):  # such a tensor may be written in this mode only
                target.copy_(buffer)
        self._back.clear()
        self._kept.clear()
