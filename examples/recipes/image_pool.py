"""A GAN with a pool of earlier fakes (CycleGAN's ImagePool): one pass for both networks, and a pool for each lane.

samebits run -n 2 examples/recipes/image_pool.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits

POOL = 32  # fakes that each lane keeps

images = torch.tensor(load_digits().data / 16, dtype=torch.float32)


def drawn_from(pool, fakes):
    """Each fake, or with even chances an earlier one of this lane, whose place it takes."""
    chosen = []
    for fake in fakes:
        if len(pool) < POOL:
            pool.append(fake)
            chosen.append(fake)
        elif torch.rand(()) < 0.5:
            chosen.append(fake)
        else:
            place = int(torch.randint(POOL, ()))
            chosen.append(pool[place])
            pool[place] = fake
    return torch.stack(chosen)


def towards(scores, wanted):
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, wanted))


run = samebits.init(seed=0, lanes=4, threads=1)
generator = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid())
critic = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
making = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
judging = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
loader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True)
generator, critic, making, judging, loader = run.prepare(generator, critic, making, judging, loader)

pool = run.per_lane(list)  # an empty list for each lane
for _epoch in run.epochs(12):
    for step in run.steps(loader):
        for (x,) in step:
            fake = generator(torch.randn(len(x), 16))
            critic.requires_grad_(False)  # the generator's loss only goes through it
            fooled = towards(critic(fake), 1.0)
            critic.requires_grad_(True)
            earlier = drawn_from(pool.value, fake.detach())
            run.backward(fooled + towards(critic(x), 1.0) + towards(critic(earlier), 0.0))
        for optimizer in (making, judging):
            optimizer.step()
            optimizer.zero_grad()

with torch.no_grad():
    apart = (generator(torch.randn(512, 16)).mean(0) - images.mean(0)).abs().mean()
run.log(apart=float(apart))
