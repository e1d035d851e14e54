"""What a state will hold, and which rank holds which tensor: reported by every rank, concluded by each in the same way.

Under a strategy that spreads a model, a rank has the values of its own part; the rest is on the meta device, or (the
state of an optimizer) does not exist. Ranks report names, dtypes and shapes in one frame; then tensors travel one at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import LockstepError, UsageError
from lockstep.rank.checkpoint.exact_json import encode
from lockstep.rank.checkpoint.tensor_file import Described, TensorFileWriter, order_of
from lockstep.rank.transport.contract import Transport


@dataclass
class TensorSet:
    """The tensors of one file, as this rank has them; a tensor on the meta device belongs to another rank."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    holders: dict[str, int] = field(default_factory=dict)
    """The rank whose values count, for tensors that not every rank holds."""
    judged: set[str] = field(default_factory=set)
    """Those that must be finite in a state that is."""
    also: dict[str, Sequence[str]] = field(default_factory=dict)
    """The other names of a tensor that has several."""

    def add(self, name: str, tensor: Tensor, holder: int | None = None, *, judged: bool = False) -> str:
        """Keep `tensor` under `name`, or a free name like it, and return the name that it got."""
        while name in self.tensors:
            name += "'"
        self.tensors[name] = tensor
        if judged:
            self.judged.add(name)
        if holder is not None:
            self.holders[name] = holder
        return name


@dataclass
class Contents:
    """Everything that one `run.save_state` writes, as this rank has it."""

    documents: dict[str, Any] = field(default_factory=dict)
    """Encoded JSON by label; must be the same on every rank, except for those in `of_main`."""
    of_main: set[str] = field(default_factory=set)
    """Documents that may differ; rank 0's is written."""
    tensors: dict[str, list[Tensor]] = field(default_factory=dict)
    """The tensors of each document."""
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By optimizer, the encoded state of each parameter that this rank updates."""
    files: dict[str, TensorSet] = field(default_factory=dict)

    def add(
        self, name: str, value: Any, file: str, *, label: str = "", of_main: bool = False, judged: bool = False
    ) -> None:
        """Encode `value` as a document; its tensors go into `file`. Raises `UsageError`.

        Args:
            name: its name in messages, and the document's label if there is no other.
            value: what to write.
            file: the file for its tensors.
            label: the document's.
            of_main: whether ranks may differ.
            judged: whether its tensors must be finite in a state that is.
        """
        tensors, compared = self.files.setdefault(file, TensorSet()), self.tensors.setdefault(label or name, [])

        def keep(path: str, tensor: Tensor) -> str:
            compared.append(tensor)
            return tensors.add(path, tensor, judged=judged)

        self.documents[label or name] = encode(value, name, keep)
        if of_main:
            self.of_main.add(label or name)

    def written(self) -> dict[str, Any]:
        """The content of state.json."""
        return {"documents": self.documents, "entries": self.entries}

    def digests(self) -> dict[str, str]:
        """A digest of each document that ranks must agree on, with the bits of its tensors."""
        return {
            label: digest([value, [_hash(tensor) for tensor in self.tensors.get(label, ()) if not tensor.is_meta]])
            for label, value in self.documents.items()
            if label not in self.of_main
        }


def digest(value: Any) -> str:
    """A digest that is equal for equal JSON."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def _hash(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.blake2b(flat.view(torch.uint8).numpy().data if flat.numel() else b"", digest_size=8).hexdigest()


def differing(record: list[Mapping[str, str]]) -> str:
    """The first label whose digest is not the same on every rank; empty when there is none."""
    labels = dict.fromkeys(label for one in record for label in one)
    return next((label for label in labels if len({one.get(label) for one in record}) > 1), "")


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

    Args:
        path: the new file; None when rank 0 may not write after all, and the tensors only pass by.
        found: where each tensor comes from.
        tensors: this rank's.
        transport: between the ranks.
        hashes: whether it gets a SHA-256.

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
        except (OSError, LockstepError) as error:
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
