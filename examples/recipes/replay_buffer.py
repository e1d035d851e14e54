"""Off-policy reinforcement learning (DQN): lanes play and learn, and what they have seen goes into one replay buffer.

samebits run -n 2 examples/recipes/replay_buffer.py
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits

ENVIRONMENTS, MOMENTS, ROWS, DRAWN = 16, 300, 4000, 64  # rows that are kept, and that each lane draws in a step


def pushed(poles, right):
    """Poles on carts, 0.02 s later. State: the cart's place and speed, the pole's angle and speed; (number, 4)."""
    _, speed, angle, turning = poles.T
    force = (20.0 * right - 10.0 + 0.05 * turning.square() * angle.sin()) / 1.1
    turn = (9.8 * angle.sin() - angle.cos() * force) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
    return poles + 0.02 * torch.stack([speed, force - 0.05 * turn * angle.cos() / 1.1, turning, turn], 1)


def standing(number):
    return torch.empty(number, 4).uniform_(-0.05, 0.05)


def played(poles, right):
    """A row for each pole: before, action, after, fallen. And the poles to go on with."""
    after = pushed(poles, right)
    fallen = (after[:, 2].abs() > math.radians(12)) | (after[:, 0].abs() > 2.4)
    rows = torch.cat([poles, right[:, None], after, fallen[:, None]], 1)
    return rows, torch.where(fallen[:, None], standing(len(poles)), after)


def loss_of(rows):
    before, action, after, fallen = rows.split([4, 1, 4, 1], 1)
    with torch.no_grad():
        worth = 1.0 + 0.97 * (1.0 - fallen[:, 0]) * target(after).max(1).values
    return F.smooth_l1_loss(policy(before).gather(1, action.long())[:, 0], worth)


run = samebits.init(seed=0, lanes=4, threads=1)
policy = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
target = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
loader = DataLoader(range(ENVIRONMENTS), batch_size=ENVIRONMENTS)  # a sample is the number of an environment
policy, target, optimizer, loader = run.prepare(policy, target, optimizer, loader)

run.state.rows, _ = played(standing(256), torch.randint(2, (256,)).float())  # the same on every rank
poles = run.per_lane(lambda: None)
for _moment in run.epochs(MOMENTS):
    for step in run.steps(loader):
        made = []
        for numbers in step:
            now = standing(len(numbers)) if poles.value is None else poles.value
            with torch.no_grad():
                best = policy(now).argmax(1)
            by_chance = torch.rand(len(now)) < max(0.05, 1.0 - step.number / 150)
            right = torch.where(by_chance, torch.randint(2, (len(now),)), best)
            rows, poles.value = played(now, right.float())
            made.append(rows)
            drawn = torch.randint(len(run.state.rows), (DRAWN,))
            run.backward(loss_of(run.state.rows[drawn]))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, new in zip(target.parameters(), policy.parameters(), strict=True):
                mean.lerp_(new, 0.1)
        # What all lanes saw.
        run.state.rows = torch.cat([run.state.rows, run.lane_cat(made)])[-ROWS:]

fallen = float(run.state.rows[-100 * ENVIRONMENTS :, -1].sum())
run.log(stood=100 * ENVIRONMENTS / max(fallen, 1.0))  # moments for each fall, of the last 100
