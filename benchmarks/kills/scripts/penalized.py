"""WGAN-GP with an optimizer of the script's own (Lion), and a list that each lane hands on to itself."""

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.kills import notes


class Lion(torch.optim.Optimizer):
    """Chen et al., Symbolic Discovery of Optimization Algorithms, 2023."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for one in (one for one in group["params"] if one.grad is not None):
                mean = self.state[one].setdefault("mean", torch.zeros_like(one))
                one.sub_(torch.lerp(mean, one.grad, 0.1).sign_(), alpha=group["lr"])
                mean.lerp_(one.grad, 0.01)


run = samebits.init(seed=4, lanes=4, threads=1)
data = TensorDataset(torch.randn(160, 8), torch.arange(160))
maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
critic = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
of_maker, of_critic = Lion(maker.parameters()), Lion(critic.parameters())
loader = DataLoader(data, batch_size=8, shuffle=True)
maker, critic, of_maker, of_critic, loader = run.prepare(maker, critic, of_maker, of_critic, loader)
recent = run.per_lane(list)


def penalty(real: Tensor, made: Tensor) -> Tensor:
    between = torch.lerp(real, made, torch.rand(len(real), 1)).requires_grad_()
    [slope] = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (slope.norm(dim=1) - 1).pow(2).mean()


for _ in run.epochs(int(sys.argv[1]) // 20):
    for step in run.steps(loader):
        for x, numbers in step:
            notes.samples(step.number, numbers.tolist())
            made = maker(torch.randn(len(x), 4)).detach()
            loss = critic(made).mean() - critic(x).mean()
            recent.value = [*recent.value[-3:], float(loss)]
            run.backward(loss + (10 + sum(recent.value)) * penalty(x, made))
        of_critic.step()
        of_critic.zero_grad()
        of_maker.zero_grad()
        run.log(judged=step.loss)
        if step.number % 2 == 0:
            for x, _ in step:
                run.backward(-critic(maker(torch.randn(len(x), 4))).mean())
            of_maker.step()
        of_maker.zero_grad()
        of_critic.zero_grad()
        notes.ended(step.number)
run.save_state("end")
