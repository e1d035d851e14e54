"""The hash of everything that the prepared models hold, wherever it lies; what the launcher prints as `bits`."""

from __future__ import annotations

import hashlib

from torch import Tensor

from lockstep.run.parts import Parts
from lockstep.strategy.agreement import tensor_hash


def state_hash(parts: Parts) -> str:
    """SHA-256 over names and bits of all parameters and buffers, the same for every layout. Every rank must call it."""
    rank = parts.transport.rank
    tensors = {
        f"{number} {name}": tensor
        for number, model in enumerate(parts.models)
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor)
    }
    mine = {name: tensor_hash(t) for name, t in tensors.items() if rank == (parts.strategy.holder_of(t) or 0)}
    told = [mine] if parts.mesh.stages == 1 else parts.transport.all_gather_object(mine, "hash of the model")
    found = {key: value for hashes in told for key, value in hashes.items()}
    digest = hashlib.sha256()
    for name in tensors:
        digest.update(f"{name.partition(' ')[2]} {found[name]}\n".encode())
    return digest.hexdigest()
