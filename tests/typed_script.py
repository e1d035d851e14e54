"""A script as a type checker sees it. mypy checks this file (`make lint`); nothing runs it."""

from typing import Any, assert_type

import torch
from torch import nn
from torch.utils.data import DataLoader

import samebits


class Net(nn.Module):
    """A model with a method of its own."""

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        return images


def on_a_rank(rank: int, where: str) -> None:
    """What `samebits.spawn` calls."""


def start() -> None:
    """With `join=False` there is something to join."""
    assert_type(samebits.spawn(on_a_rank, ("here",), nprocs=2, join=False).join(timeout=1.0), bool)
    try:
        samebits.spawn(on_a_rank, args=("here",))
    except samebits.RankFailed as error:
        assert_type(error.rank, int)


def train(loader: DataLoader[Any], model: Net, optimizer: torch.optim.AdamW) -> None:
    """Everything keeps its type through `prepare`."""
    run = samebits.init(seed=0, lanes=4, precision="bf16-mixed", numerics="exact")
    assert_type(run, samebits.Run)
    assert_type(run.prepare(model), Net)
    assert_type(run.prepare(model, optimizer), tuple[Net, torch.optim.AdamW])
    same, same_optimizer, prepared = run.prepare(model, optimizer, loader)
    assert_type(prepared, DataLoader[Any])
    for epoch in run.epochs(3):
        assert_type(epoch, int)
        for step in run.steps(prepared):
            assert_type(step, samebits.Step)
            for images, _ in step:
                run.backward(same.embed(images).mean())
            same_optimizer.step()
            assert_type(step.loss, samebits.Agreed)
    assert_type(samebits.load_weights(model, "w.safetensors").missing_keys, list[str])
    assert_type(run.load_state("state", missing_ok=True), dict[str, Any])
    assert_type(run.tally().mean(), dict[str, samebits.Agreed])
