"""Reinforcement learning: a batch is a set of environments, and each lane plays its own (REINFORCE, a pole on a cart).

samebits run -n 2 examples/recipes/environments.py
"""

import math

import torch
from torch import nn
from torch.distributions import Categorical
from torch.utils.data import DataLoader

import samebits

ENVIRONMENTS, MOMENTS = 16, 40


class CartPoles:
    """A pole for each of a lane's environments; state: cart's place and speed, pole's angle and speed. (number, 4)."""

    def __init__(self, number):
        self.state = torch.empty(number, 4).uniform_(-0.05, 0.05)

    def step(self, action):
        """Push right where `action` is 1. Returns which poles still stand."""
        _, speed, angle, turning = self.state.T
        force = (20.0 * action - 10.0 + 0.05 * turning.square() * angle.sin()) / 1.1
        turn = (9.8 * angle.sin() - angle.cos() * force) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
        push = force - 0.05 * turn * angle.cos() / 1.1
        self.state = self.state + 0.02 * torch.stack([speed, push, turning, turn], 1)
        return (self.state[:, 2].abs() < math.radians(12)) & (self.state[:, 0].abs() < 2.4)


def episode(policy, number):
    """The loss of one episode in each of `number` environments, and how long the poles stood."""
    poles, standing = CartPoles(number), torch.ones(number)
    chances, rewards = [], []
    for _ in range(MOMENTS):
        action = Categorical(logits=policy(poles.state))
        drawn = action.sample()
        chances.append(action.log_prob(drawn) * standing)
        standing = standing * poles.step(drawn)
        rewards.append(standing)
    ahead = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    advantage = (ahead - ahead.mean(1, keepdim=True)) / MOMENTS
    return -(torch.stack(chances) * advantage).sum(0).mean(), torch.stack(rewards).sum(0)


run = samebits.init(seed=0, lanes=4, threads=1)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
# A sample is the number of an environment.
loader = DataLoader(range(ENVIRONMENTS), batch_size=ENVIRONMENTS)
policy, optimizer, loader = run.prepare(policy, optimizer, loader)

for _update in run.epochs(24):
    for step in run.steps(loader):
        for numbers in step:
            loss, stood = episode(policy, len(numbers))
            run.backward(loss)
            run.log(stood=stood.mean())
        optimizer.step()
        optimizer.zero_grad()
