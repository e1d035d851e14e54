"""How long a step stands still for a state of a model on the GPU: an automatic state beside torch.save (G3)."""

import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.rank.checkpoint.store.checkpointer import AsyncCheckpointer
from samebits.rank.checkpoint.store.save import save_state

GOAL = 50.0
WIDTH = 4096
STATE_BYTES = 12
"""Of each parameter, with AdamW."""


def trained(run, layers, width):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(2, width)), batch_size=2)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        for (inputs,) in step:
            run.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def timed(call):
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main():
    quick = "--quick" in sys.argv
    wanted = float(sys.argv[1]) * (1 << 30)
    width = 256 if quick else WIDTH
    layers = 2 if quick else max(1, round(wanted / STATE_BYTES / width / width))
    run = samebits.init(lanes=1, threads=4)
    model, optimizer = trained(run, layers, width)
    checkpointer = AsyncCheckpointer(1)

    def ours():
        save_state(run._run, Path("states/step-00000001"), {}, checkpointer.take, checkpointer.offer())
        if problem := checkpointer.hand_over():
            raise SystemExit(problem)

    def stock():
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "stock.pt")

    times = {"samebits": [], "torch.save": []}
    for _ in range(2 if quick else 4):
        for name, call in (("samebits", ours), ("torch.save", stock)):
            times[name].append(timed(call))
            if problem := checkpointer.settle():
                raise SystemExit(problem)
    checkpointer.close()
    middle = {name: statistics.median(some[1:]) for name, some in times.items()}
    size = Path("stock.pt").stat().st_size
    ratio = middle["torch.save"] / middle["samebits"]
    says = f"{size / (1 << 30):.2f} GiB: {middle['samebits']:.3f} s, torch.save {middle['torch.save']:.3f} s: {ratio:.1f} x"
    print(json.dumps({"missed": ratio < GOAL, "says": says, "ratio": ratio, "bytes": size, "seconds": times}))


if __name__ == "__main__":
    main()
