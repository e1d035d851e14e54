"""What runs on the nodes: all_reduces until there is a file `stop`, or --steps of them; each rank notes when it does what.

A plain script of torch.distributed over Gloo, which starts anew when its launcher starts it again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--numbers", type=int, default=256)
    options = parser.parse_args()
    with (options.notes / f"{os.getpid()}.txt").open("w", buffering=1) as notes:

        def note(what: str, **told: object) -> None:
            notes.write(json.dumps({"what": what, "at_s": time.monotonic(), **told}) + "\n")

        note("began", host=socket.gethostname(), rank=int(os.environ["RANK"]))
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        total, step, ends = torch.zeros(options.numbers), 0, False
        while not ends:
            numbers = torch.arange(options.numbers, dtype=torch.float32).add(rank * 0.1 + step).sin()
            dist.all_reduce(numbers)
            total += numbers / (step + 1)
            step += 1
            note("step", step=step, size=size, rank=rank)
            if not options.steps:
                wish = torch.tensor([float((options.notes / "stop").exists())])
                dist.all_reduce(wish)
                ends = bool(wish.item())
                time.sleep(0.01)  # the other contestant's agents want the two cores too
            else:
                ends = step == options.steps
        note("ended", bits=hashlib.sha256(total.numpy().tobytes()).hexdigest())
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
