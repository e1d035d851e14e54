"""A rank of lockstep, Gloo or DeepSpeed among the peers: it serves slices as peers/slices.hpp does, in a loop of Python.

lockstep run -n 2 -m benchmarks.in_rank.peers --socket PATH --name lockstep [--deepspeed OPERATION.so]
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.cases import MIB, Case
from benchmarks.in_rank.back_end import lockstep_group
from benchmarks.in_rank.collectives import Act, Buffer, buffers, by_handle, by_torch, check, pool_bytes, window_memory
from lockstep.node.meeting import meet

WINDOW_BYTES = 256 * MIB
"""Room for every case and for the parts that a buffer brings."""

Side = Callable[[Buffer], Act]


class Server:
    """One rank's groups; sides in the order of the contestant's."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        self.sides: list[tuple[Side, Tensor | None]] = []
        self.barrier: Callable[[], object] = dist.barrier

    def take_ours(self) -> None:
        """Our handle in windows and with ordinary tensors, our backend, and Gloo."""
        store = dist.PrefixStore("benchmarks", dist.group.WORLD.get_group_store())
        handle = meet(store, self.rank, self.num_ranks, lambda: "benchmarks")
        self._kept = window_memory(handle, WINDOW_BYTES)
        one = torch.zeros(1)
        self.barrier = by_handle(handle, "barrier", Buffer(one, one))
        by_ours = partial(by_handle, handle, "all_reduce")
        self.sides = [
            (by_ours, self._kept[1]),
            (by_ours, None),
            (partial(by_torch, lockstep_group(), "all_reduce"), None),
            (partial(by_torch, dist.group.WORLD, "all_reduce"), None),
        ]

    def take_deepspeed(self, library: Path) -> None:
        """The operation of its inference; its segments have names that only these ranks know, and lose them here."""
        name = f"{os.getppid()}_{os.environ.get('MASTER_PORT', '')}"
        told = [name]
        dist.broadcast_object_list(told)
        os.environ |= {"LOCAL_SIZE": str(self.num_ranks), "MASTER_ADDR": "peers", "MASTER_PORT": told[0]}
        loader = importlib.machinery.ExtensionFileLoader(library.stem, str(library))
        operation: Any = importlib.util.module_from_spec(importlib.util.spec_from_loader(library.stem, loader))
        loader.exec_module(operation)
        operation.initialize(self.num_ranks, self.rank)
        dist.barrier()
        for segment in Path("/dev/shm").glob(f"*_peers_{told[0]}_{self.rank}"):
            segment.unlink()
        act = torch.ops.deepspeed.inference_all_reduce_
        self.sides = [(lambda buffer: partial(act, buffer.whole), None)]
        self.barrier = partial(act, torch.zeros(1))

    def measured(self, side: int, num_bytes: int, num_buffers: int, often: int, num_blocks: int) -> str:
        """What slices.hpp answers."""
        make, memory = self.sides[side]
        case = Case("", "all_reduce", num_bytes)
        if memory is None:
            memory = torch.empty(pool_bytes(case, num_buffers, self.num_ranks) // 4)
        made = buffers(memory, case, num_buffers, self.num_ranks)
        acts = [make(buffer) for buffer in made]
        if not check("all_reduce", acts[0], made[0], self.rank, self.num_ranks):
            return "wrong"
        following = cycle(acts)
        for _ in range(num_buffers + 1):
            next(following)()
        told = ["ok"]
        for _ in range(num_blocks):
            self.barrier()
            started = time.perf_counter_ns()
            for _ in range(often):
                next(following)()
            told.append(str((time.perf_counter_ns() - started) / often))
        return " ".join(told)

    def serve(self, path: Path, name: str) -> None:
        """Until the driver says `end`, or is gone."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            with connection.makefile("rw", encoding="ascii") as talk:
                print(self.rank, os.getpid(), name, file=talk, flush=True)
                while (line := talk.readline().split()) and line != ["end"]:
                    print(self.measured(*map(int, line)), file=talk, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--deepspeed", type=Path)
    options = parser.parse_args()
    server = Server()
    if options.deepspeed is not None:
        server.take_deepspeed(options.deepspeed)
    else:
        server.take_ours()
    server.serve(options.socket, options.name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
