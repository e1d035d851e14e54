"""What a rank hands to the process that writes: where the files of a state lie in memory, and what goes with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Image:
    """The bytes of one file, in memory."""

    name: str
    at: int
    """Its first byte."""
    size: int
    """In bytes."""
    tensors: Sequence[str]
    """Names of the tensors in it, sorted."""
    judged: Sequence[tuple[str, str, int, int]] = ()
    """The tensors that are to be finite, in the order of the file: name, dtype's code, first byte in memory and size."""


@dataclass(frozen=True)
class Order:
    """One state to write."""

    target: str
    """An absolute path; the ring is its parent."""
    keep: int
    """How many states of the ring stay."""
    images: Sequence[Image]
    documents: Mapping[str, Any]
    """The content of state.json."""
    facts: Mapping[str, Any]
    """What the manifest says besides its files."""
    taken_s: float
    """growing_time() when the state was copied: what the run logs while it is written comes after it."""
    keeps_finite: bool = True
    """See `Ring`."""
    url: str = ""
    """The ring at a URL that gets a copy; empty: none does."""

    def encode(self) -> bytes:
        """As JSON. Raises ValueError for a number that JSON cannot express."""
        told = {**vars(self), "images": [vars(image) for image in self.images]}
        return json.dumps(told, allow_nan=False).encode()

    @classmethod
    def decode(cls, text: bytes) -> Order:
        """The inverse of `encode`."""
        told = json.loads(text)
        return cls(**{**told, "images": [Image(**image) for image in told["images"]]})
