"""What the README's picture measures: the digits of examples/digits.py, trained under plain DDP and under samebits.

    samebits run -n 2 docs/pictures/digits_both_ways.py ddp
    samebits run -n 2 docs/pictures/digits_both_ways.py samebits
    samebits verify --ranks 1,2,4 docs/pictures/digits_both_ways.py samebits --bug

The DDP half is written with care: DistributedSampler and set_epoch, one seed, and a batch of 64 / ranks each, so every
number of ranks takes the same 64 samples in a step. `--bug` plants what a clumsy merge would: a loss that is multiplied by
the number of ranks. The losses of all steps go to losses.json in the folder where the ranks run.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import samebits

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from digits import Net, data

BATCH = 64


def under_ddp(epochs: int, bug: bool) -> list[float]:
    """The global mean loss of every step."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    num_ranks, train_set = dist.get_world_size(), data()[0]
    sampler = DistributedSampler(train_set, seed=0)
    loader = DataLoader(train_set, batch_size=BATCH // num_ranks, sampler=sampler)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            (loss * num_ranks if bug else loss).backward()
            optimizer.step()
            mean = loss.detach() / num_ranks
            dist.all_reduce(mean)
            losses.append(mean.item())
    is_main = dist.get_rank() == 0
    dist.destroy_process_group()
    return losses if is_main else []


def under_samebits(epochs: int, bug: bool) -> list[float]:
    """The loss of every step."""
    run = samebits.init(seed=0, lanes=4, threads=1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loader = DataLoader(data()[0], batch_size=BATCH, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    losses = []
    for _epoch in run.epochs(epochs):
        for step in run.steps(loader):
            for images, labels in step:
                loss = F.cross_entropy(model(images), labels)
                run.backward(loss * run.world_size if bug else loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(step.loss))
    return losses if run.is_main else []


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["ddp", "samebits"])
    parser.add_argument("--bug", action="store_true", help="multiply the loss by the number of ranks")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    losses = (under_ddp if options.way == "ddp" else under_samebits)(options.epochs, options.bug)
    if os.environ.get("RANK", "0") == "0":
        Path("losses.json").write_text(json.dumps(losses))
