"""What ranks must agree on before they train: which parameters and buffers there are, and their values."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.dlpack import from_dlpack

from samebits.errors import UsageError
from samebits.rank.transport.contract import Transport

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of each element size, to look at bits."""

COLUMNS = 4093
"""A prime, so that rows of a weight which change places hardly ever match."""
SUMMED = 32 * COLUMNS
"""The number of elements added up at a time on a CPU: half a megabyte of float32, which is read twice, the second time
from the cache. From memory (256 rows) it takes 1.7 times as long."""
SUMMED_ELSEWHERE = 8 * SUMMED
"""The same on other devices, because torch copies elements that are narrower than their sum."""
SMALL_BYTES = 1 << 16
"""Below this, a CRC-32 (4 GB/s) is faster than sums (20 GB/s), which take 30 us for their calls."""


def bit_sums(tensors: Sequence[Tensor]) -> list[int]:
    """One number from the bits of each tensor, which is dense, of any shape, dtype and device. 7 ms for 10 M float32.

    Of all tensors on a GPU there is one copy to the host, for which it waits.
    """
    whole = [torch.view_as_real(one).reshape(-1) if one.is_complex() else one for one in tensors]
    rows = [one.view(INTEGERS[one.element_size()]).reshape(-1) for one in whole]
    elsewhere = {row.device for row in rows if row.device.type != "cpu"}
    if not elsewhere:
        return [_crc(_sums(row)) for row in rows]
    sums = [_sums(row) for row in rows]
    for device in elsewhere:
        there = [number for number, row in enumerate(sums) if row.device == device]
        copies = torch.cat([sums[number].view(torch.uint8) for number in there]).cpu()
        parts = torch.split(copies, [sums[number].nbytes for number in there])
        for number, part in zip(there, parts, strict=True):
            sums[number] = part
    return list(map(_crc, sums))


def packed(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same dense tensors, with the small ones of each dtype and device joined: fewer calls for many scalars."""
    small: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    large: list[Tensor] = []
    for one in tensors:
        if one.numel() * one.element_size() < SMALL_BYTES:
            small.setdefault((one.dtype, one.device), []).append(one.reshape(-1))
        else:
            large.append(one)
    return [*map(torch.cat, small.values()), *large]


def _sums(row: Tensor) -> Tensor:
    """What a CRC is taken of: the sums of columns and rows, or the row itself."""
    size = row.numel() // COLUMNS * COLUMNS
    if row.numel() * row.element_size() < SMALL_BYTES or not size:
        return row
    # Sums wrap around, which loses nothing: any changed bit still changes its column's sum and its row's.
    dtype = torch.int64 if row.element_size() == 8 else torch.int32
    columns = torch.zeros(COLUMNS, dtype=dtype, device=row.device)
    rows: list[Tensor] = [columns]
    for part in torch.split(row[:size], SUMMED if row.device.type == "cpu" else SUMMED_ELSEWHERE):
        table = part.view(-1, COLUMNS)
        columns += table.sum(0, dtype=dtype)
        rows.append(table.sum(1, dtype=dtype))
    columns[: row.numel() - size] += row[size:]
    rows.append(row[size:].sum(0, keepdim=True, dtype=dtype))
    return torch.cat(rows)


def _crc(row: Tensor) -> int:
    # [Note: why arrays are made through DLPack]
    # `.numpy()` on the tensor would mark its storage forever as one that NumPy may use, and `other_users` would find it.
    return zlib.crc32(from_dlpack(row).numpy().data)


SAME_MODEL = "Build the same model on every rank."


def refuse_unsupported(models: Sequence[tuple[str, nn.Module]], absent: Container[int] = ()) -> None:
    """Raise `UsageError` for what cannot be carried: uninitialised, complex, quantised, on "meta", tied by `.data`, scripted."""
    _refuse_overlaps(models)
    for label, model in models:
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise UsageError(
                f"{label} is, or holds, a module of torch.jit, whose parameters cannot be laid out anew.",
                "Prepare the plain module; torch.compile makes it quicker.",
            )
        for name, parameter in model.named_parameters():
            if parameter.is_meta and id(parameter) not in absent:
                raise UsageError(f"{label}.{name} is on the meta device.", "Give it values before run.prepare.")
            if parameter.is_complex() or not parameter.is_floating_point():
                raise UsageError(
                    f"{label}.{name} has dtype {parameter.dtype}; parameters must be real floating-point numbers.",
                    "Keep it as a buffer, or as two real parameters.",
                )


def _refuse_overlaps(models: Sequence[tuple[str, nn.Module]]) -> None:
    """Refuse tensors over the same memory: they would come apart when each gets its own place."""
    spans: dict[int, tuple[int, int, str]] = {}
    for label, model in models:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if is_lazy(tensor):
                raise UsageError(
                    f"{label}.{name} has no shape yet.", "Run one batch through the model before run.prepare."
                )
            if tensor.is_meta or tensor.layout is not torch.strided or not tensor.numel():
                continue
            extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            spans[id(tensor)] = (start, start + extent * tensor.element_size(), f"{label}.{name}")
    for (_, end, name), (start, _, other) in pairwise(sorted(spans.values())):
        if start < end:
            raise UsageError(
                f"{name} and {other} are different tensors in the same memory, which samebits would separate.",
                "Use the same object to tie them (`b.weight = a.weight`), and a property for a view of a buffer.",
            )


def check_same_models(
    models: Sequence[tuple[str, nn.Module]], transport: Transport, absent: Container[int] = ()
) -> None:
    """Raise `UsageError` on each rank if names, shapes, dtypes or values differ. Collective: call it on every rank."""
    # A model that differs between ranks was made with different random numbers or from different files. To broadcast one of
    # them, as torch's DDP does, would hide that.
    found = find_difference(models, transport, absent)
    if found is not None:
        raise found.mistake


@dataclass(frozen=True)
class Difference:
    """The first difference between models."""

    name: str
    mistake: UsageError


def find_difference(
    models: Sequence[tuple[str, nn.Module]], transport: Transport, absent: Container[int] = ()
) -> Difference | None:
    """The first parameter or buffer, `absent` ones aside, that differs. Collective: call it on every rank."""
    held = [(name, tensor) for name, tensor in named_tensors(models) if id(tensor) not in absent]
    mine = list(zip((name for name, _ in held), digests([tensor for _, tensor in held]), strict=True))
    whole = hashlib.blake2b(repr(mine).encode(), digest_size=16).hexdigest()
    if len(set(transport.all_gather_object(whole, "prepare"))) == 1:
        return None
    # Only now, when something differs, do the names of all tensors travel.
    everyone = transport.all_gather_object(mine, "prepare")
    for rank, theirs in enumerate(everyone[1:], 1):
        for (name, digest), (other_name, other_digest) in zip(everyone[0], theirs, strict=False):
            if name != other_name or digest != other_digest:
                return Difference(name, _mistake(rank, name, other_name, digest, other_digest))
        if len(theirs) != len(everyone[0]):
            counts = f"{len(everyone[0])} parameters and buffers on rank 0 but {len(theirs)} on rank {rank}"
            return Difference(
                "the number of parameters and buffers", UsageError(f"The model has {counts}.", SAME_MODEL)
            )
    return None


def _mistake(rank: int, name: str, other_name: str, digest: str, other_digest: str) -> UsageError:
    if name != other_name:
        return UsageError(f"The model has {name!r} on rank 0 where rank {rank} has {other_name!r}.", SAME_MODEL)
    shape, other_shape = digest.rpartition(" ")[0], other_digest.rpartition(" ")[0]
    if shape != other_shape:
        return UsageError(f"{name!r} is {shape} on rank 0 but {other_shape} on rank {rank}.", SAME_MODEL)
    return UsageError(
        f"{name!r} has different values on rank {rank} than on rank 0.",
        "Build the model after samebits.init(), which gives every rank the same random numbers, and do not seed from "
        "the rank or the time; what lanes left (a mask) is put together first by run.lane_sum.",
    )


def named_tensors(models: Sequence[tuple[str, nn.Module]]) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer once, with the model's label before its name."""
    for label, model in models:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            yield f"{label}.{name}", tensor


def digests(tensors: Sequence[Tensor]) -> list[str]:
    """For each tensor its shape and dtype, and a checksum of its bytes: CRC-32, or on a device a sum over its bits made there.

    They show what differs by accident, six times as fast as a hash: 0.15 s for 500 MB.
    """

    def digest(tensor: Tensor) -> str:
        if tensor.device.type == "cpu" or tensor.layout is not torch.strided:
            return f"{zlib.crc32(_bytes_of(tensor)):08x}"
        return f"{bit_sums([tensor.detach().contiguous()])[0]:08x}"

    return [f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')} {digest(one)}" for one in tensors]


def tensor_hash(tensor: Tensor) -> str:
    """32 hexadecimal digits of the tensor's values: equal exactly when the bits are (and -0.0 is not 0.0)."""
    return hashlib.blake2b(_bytes_of(tensor), digest_size=16).hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    flat = dense.contiguous().cpu().reshape(-1)
    # [Note: why arrays are made through DLPack]
    alias = from_dlpack(flat.view(torch.uint8))
    return alias.numpy().data


def refuse_spread(models: Sequence[nn.Module], strategy: str) -> None:
    """Raise `UsageError` for a model that its author has put on several devices: `strategy` says where layers go."""
    for model in models:
        if spans_devices(model):
            raise UsageError(
                f"{type(model).__name__} is on several devices already, but {strategy} chooses the device of each layer.",
                "Leave the model on one device, without .to(...) in forward, or use --strategy single or ddp.",
            )


def spans_devices(model: nn.Module) -> bool:
    """Whether the model's author has already put it on several devices; then it is left as it is."""
    return len({tensor.device for tensor in model.parameters()}) > 1
