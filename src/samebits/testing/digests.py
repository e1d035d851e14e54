"""Hashes of what must not depend on the ranks."""

from __future__ import annotations

import hashlib

from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.rank.strategy.agreement import tensor_hash


def digest_of(*things: nn.Module | Optimizer | Tensor) -> str:
    """One hash over the bits of all tensors in the state of models and optimizers."""
    digest = hashlib.sha256()
    for thing in things:
        state = {"": thing} if isinstance(thing, Tensor) else thing.state_dict()
        _update(digest, "", state)
    return digest.hexdigest()[:16]


def _update(digest: hashlib._Hash, path: str, value: object) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _update(digest, f"{path}.{key}", item)
    elif isinstance(value, Tensor):
        digest.update(f"{path} {tuple(value.shape)} {value.dtype} {tensor_hash(value)}".encode())
