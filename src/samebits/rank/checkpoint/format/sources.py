"""What a state will hold, and which rank holds which tensor: reported by every rank, concluded by each in the same way.

Under a strategy that spreads a model, a rank has the values of its own part; the rest is on the meta device, or (the
state of an optimizer) does not exist. Ranks report names, dtypes and shapes in one frame; then tensors travel one at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samebits.errors import SamebitsError, UsageError
from samebits.rank.checkpoint.format.state import TensorSet
from samebits.rank.checkpoint.format.tensor_file import Described, TensorFileWriter, order_of
from samebits.rank.transport.contract import Transport

Inventory = dict[str, list[Any]]
"""For one file, by tensor: its dtype's code, its shape, whether this rank has its values, the holder or None, whether
its bits are known to be the same on every rank, whether they must be finite, and the tensor's other names."""


@dataclass(frozen=True)
class Source:
    """Where a tensor comes from."""

    rank: int
    described: Described
    is_everywhere: bool = False
    """Whether every rank has the same bits, so any of them may give them."""
    is_judged: bool = False
    """Whether it must be finite in a state that is."""


Found = Mapping[str, Mapping[str, Source]]
"""By file and tensor, where it comes from; the same on every rank."""


def inventory_of(tensors: TensorSet, equal: Container[int] = ()) -> Inventory:
    """What this rank reports to the others. Raises `UsageError` for a tensor that cannot be written.

    Args:
        tensors: this rank's, of one file.
        equal: identities of tensors that have the same bits on every rank.
    """
    record: Inventory = {}
    for name, tensor in tensors.tensors.items():
        one = Described.of(tensor, name)
        holder = tensors.holders.get(name)
        is_equal, is_judged = holder is None and id(tensor) in equal, name in tensors.judged
        also = [*tensors.also.get(name, ())]
        for other in also:
            # [Note: why a tensor is described here already]
            # Its name or dtype may be none for a file. That must show before anything is written.
            Described.of(tensor, other)
        record[name] = [one.code, list(one.shape), not tensor.is_meta, holder, is_equal, is_judged, also]
    return record


def sources(record: Sequence[Inventory]) -> dict[str, Source]:
    """By tensor, the rank that gives it: its holder, else the lowest rank that has its values.

    Raises:
        UsageError: when ranks have it in different shapes or dtypes, or no rank has its values.
    """
    found: dict[str, Source] = {}
    for name in dict.fromkeys(name for one in record for name in one):
        having = {rank: one[name] for rank, one in enumerate(record) if name in one}
        described = {Described(code, tuple(shape)) for code, shape, *_ in having.values()}
        if len(described) > 1:
            raise UsageError(
                f"{name} has different shapes or dtypes on different ranks, so the ranks hold different models.",
                "Build the same model on every rank.",
            )
        holders = {holder for _, _, _, holder, *_ in having.values() if holder is not None}
        present = [
            rank for rank, (_, _, is_there, *_) in having.items() if is_there and (not holders or rank in holders)
        ]
        if not present:
            raise UsageError(
                f"{name} is on the meta device on every rank that should hold it.", "Give it values first."
            )
        is_everywhere = len(present) == len(record) and all(is_equal for *_, is_equal, _, _ in having.values())
        *_, is_judged, also = having[min(present)]
        found[name] = Source(min(present), replace(described.pop(), also=tuple(also)), is_everywhere, is_judged)
    return found


def stream(found: Mapping[str, Source], tensors: Mapping[str, Tensor], transport: Transport) -> Iterator[Tensor | None]:
    """The tensors of one file in the file's order: on rank 0 the values on whatever device, elsewhere None.

    Collective: call it on every rank. Exhaust it there; at most one tensor is on its way.
    """
    for name in order_of({name: source.described for name, source in found.items()}):
        source = found[name]
        if source.rank == 0:
            yield tensors[name] if transport.rank == 0 else None
            continue
        if transport.rank == source.rank:
            moved = tensors[name].detach().cpu().contiguous()
        else:
            moved = torch.empty(source.described.shape, dtype=source.described.dtype, device="cpu")
        if moved.numel():
            transport.broadcast(moved, source.rank)
        yield moved if transport.rank == 0 else None


def write_tensors(
    path: Path | None,
    found: Mapping[str, Source],
    tensors: Mapping[str, Tensor],
    transport: Transport,
    *,
    hashes: bool = True,
) -> tuple[dict[str, Any], str]:
    """Write the file on rank 0. Collective: call it on every rank.

    Returns:
        On rank 0 what `TensorFileWriter.finish` returns, and why it could not be written; the other ranks continue meanwhile,
        so they learn of a failure afterwards.
    """
    writer, problem, written = None, "", {}
    for tensor in stream(found, tensors, transport):
        if tensor is None or problem or path is None:
            continue
        try:
            writer = writer or _begin(path, found, hashes)
            writer.write(tensor)
        except (OSError, SamebitsError) as error:
            problem = str(error)
    if transport.rank == 0 and path is not None and not problem:
        try:
            written = (writer or _begin(path, found, hashes)).finish()
        except OSError as error:
            problem = str(error)
    if writer is not None:
        # [Note: why an error here is left for later]
        # A full disk is reported again when the file is closed, and the other ranks must get on with their part.
        with contextlib.suppress(OSError):
            writer.close()
    return written, problem


def _begin(path: Path, found: Mapping[str, Source], hashes: bool) -> TensorFileWriter:
    judged = {name for name, source in found.items() if source.is_judged}
    return TensorFileWriter(path, {name: source.described for name, source in found.items()}, judged, hashes=hashes)
