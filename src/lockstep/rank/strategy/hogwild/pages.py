"""Memory that all ranks of a node write to, with no name in any file system.

Rank 0 makes an anonymous file in memory (memfd_create); the others open it through /proc/PID/fd of rank 0 and map it;
then rank 0 closes it. So nothing is left behind, however ranks end, and the size of /dev/shm (64 MiB in many
containers) does not matter. It is no transport: no rank learns of a write, and no write waits.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import torch
from torch import Tensor

from lockstep.errors import WorldError
from lockstep.rank.strategy.replica.memory import ParameterMemory
from lockstep.rank.transport.contract import Transport


class Pages(ParameterMemory):
    """Tensors that every rank of the transport maps. All ranks must be on one node, under one user."""

    is_ours = False

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Make a tensor of zeros over memory that all ranks share. Collective: call it on every rank.

        `size` elements, 1-D, on the CPU; pass the same arguments on every rank. Freed when no rank holds it any more.

        Raises:
            WorldError: on every rank, when the system refuses the memory or a rank cannot reach it.
        """
        if not size:
            return torch.zeros(0, dtype=dtype, device=device)
        file, told = -1, {"name": "", "process": os.getpid(), "file": -1, "problem": ""}
        if self._transport.rank == 0:
            told["name"] = f"lockstep-{secrets.token_hex(8)}"
            try:
                file = told["file"] = os.memfd_create(str(told["name"]))
                os.posix_fallocate(file, 0, size * dtype.itemsize)
            except OSError as error:
                told["problem"] = (
                    f"The ranks need {size * dtype.itemsize:,} bytes of shared memory, but the system refused: "
                    f"{error.strerror}. Free memory or raise the limit, or use --strategy ddp."
                )
        try:
            made = self._transport.all_gather_object(told, "shared memory")[0]
            if made["problem"]:
                raise WorldError(made["problem"])
            process = made["process"] if self._transport.rank else "self"
            mapped, problem = _map(Path(f"/proc/{process}/fd/{made['file']}"), made["name"], size, dtype)
            problems = self._transport.all_gather_object(problem, "shared memory mapped")
        finally:
            if file >= 0:
                os.close(file)
        for rank, text in enumerate(problems):
            if text:
                raise WorldError(
                    f"rank {rank} cannot reach the memory of rank 0 ({text}). The ranks of hogwild must run on one node, "
                    f"in one container, as one user. Elsewhere use --strategy ddp."
                )
        return mapped


def _map(path: Path, name: str, size: int, dtype: torch.dtype) -> tuple[Tensor, str]:
    """Map the file at `path` as a tensor, or say why not. Its name shows that it is not another node's file."""
    try:
        if not str(path.readlink()).startswith(f"/memfd:{name} "):
            return torch.empty(0, device="cpu"), f"{path} is another file"
        return torch.from_file(str(path), shared=True, size=size, dtype=dtype), ""
    except (OSError, RuntimeError) as error:
        return torch.empty(0, device="cpu"), str(error)
