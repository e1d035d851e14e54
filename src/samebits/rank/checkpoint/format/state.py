"""What is in a checkpoint: documents, the tensors that they name, and the tensors of each file, as one rank has them.

`save` collects it from a run, `sources` finds out which rank gives which tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from samebits.rank.position.exact_json import digest, encode


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
class State:
    """Everything that one `run.save_state` or automatic state writes, as this rank has it."""

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
        """Encode `value` as a document; its tensors go into `file`. Raises `UsageError`."""
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


def _hash(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.blake2b(flat.view(torch.uint8).numpy().data if flat.numel() else b"", digest_size=8).hexdigest()


def differing(record: list[Mapping[str, str]]) -> str:
    """The first label whose digest is not the same on every rank; empty when there is none."""
    labels = dict.fromkeys(label for one in record for label in one)
    return next((label for label in labels if len({one.get(label) for one in record}) > 1), "")
