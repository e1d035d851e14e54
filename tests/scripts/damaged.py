"""A training loop in which one rank's memory changes by itself, and one with every strange value that is no damage."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits

EVERY = 4


def flip(tensor, bit):
    """Flip a bit of one element in the middle, counted over its bytes, behind torch's back."""
    raw = tensor.detach().view(-1).view(torch.uint8).numpy()
    size = tensor.element_size()
    raw[raw.size // size // 2 * size + bit // 8] ^= 1 << bit % 8


def train(rank, number, what, bit, check_every=f"{EVERY}steps"):
    run = samebits.init(seed=1, lanes=6, check_every=check_every)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    model.register_buffer("table", torch.arange(5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(240, 8), torch.randint(0, 3, (240,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=12))

    done = []

    def happen(*_):
        if (run.rank, at) == (rank, number) and not done:
            done.append(what)
            state = optimizer.state[model[2].weight]
            moment = {"first": "exp_avg", "second": "exp_avg_sq", "count": "step"}.get(what)
            found = {"weight": model[2].weight, "mean": model[1].running_mean, "table": model.table}
            flip(state[moment] if moment else found[what], bit)

    model[2].register_full_backward_hook(happen) if what == "weight" else optimizer.register_step_post_hook(happen)
    for step in run.steps(loader):
        at = step.number
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
    samebits.finish()


class Strange(nn.Module):
    """A model whose tensors compare unequal to themselves, equal to others with other bits, or have odd forms."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6, momentum=None)
        self.narrow = nn.Parameter(torch.randn(5000).to(torch.bfloat16))
        self.empty = nn.Parameter(torch.zeros(0))
        self.frozen = nn.Parameter(torch.full((3,), torch.nan), requires_grad=False)
        self.last = nn.Conv1d(2, 4, 3).to(memory_format=torch.contiguous_format)
        nans = torch.tensor([0x7FC00001, 0x7F800001, -1, -0x80000000], dtype=torch.int32).view(torch.float32).clone()
        for name, value in {
            "nans": nans,
            "zeros": torch.tensor([-0.0, 0.0]),
            "flags": torch.tensor([True, False]),
            "wide": torch.tensor([2**63 - 1]),
            "phases": torch.randn(3, dtype=torch.complex64),
            "graph": torch.eye(3).to_sparse(),
            "scalar": torch.tensor(1.5, dtype=torch.float16),
            "turned": torch.randn(4, 3).t().clone(),
        }.items():
            self.register_buffer(name, value)

    def forward(self, x):
        x = self.norm(self.first(x)) * self.narrow[:6].float()
        return self.last(x.view(-1, 2, 3)).flatten(1)


def strange(optimizer_of, strategy):
    run = samebits.init(seed=2, lanes=4, check_every="1step", strategy=strategy)
    model = Strange()
    optimizer = optimizer_of([one for one in model.parameters() if one.requires_grad and one.numel()])
    data = TensorDataset(torch.randn(48, 6), torch.randint(0, 4, (48,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8))
    for _ in range(2):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model.zeros.neg_()
    every = run._run.loop_state.comparison.every
    samebits.finish()
    return every


def two_stages():
    run = samebits.init(seed=2, lanes=4, check_every="1step")
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(torch.randn(48, 6), torch.randint(0, 4, (48,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8), cut=["2"])
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    every = run._run.loop_state.comparison.every
    samebits.finish()
    return every
