"""Scripts with buffers outside the usual rules: ranges, sizes made in a lane, averages, modules that nobody prepared."""

import hashlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.rank.strategy.replica import other_buffers

DATA = torch.randn(42, 6, generator=torch.Generator().manual_seed(1))


class Observer(nn.Module):
    """As torch.ao's MinMaxObserver, with elements for each channel; `size` 0: the first batch makes it."""

    def __init__(self, size=6):
        super().__init__()
        self.register_buffer("low", torch.full((size,), float("inf")))
        self.register_buffer("high", torch.full((size,), float("-inf")))

    def forward(self, x):
        if self.training:
            low, high = x.detach().amin(0), x.detach().amax(0)
            if not self.low.numel():
                self.low.resize_(low.shape).copy_(low)
                self.high.resize_(high.shape).copy_(high)
            self.low.copy_(torch.minimum(self.low, low))
            self.high.copy_(torch.maximum(self.high, high))
        return x


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", None)

    def forward(self, x):
        self.last = x.detach().mean(0)
        return x


class Registers(nn.Module):
    def forward(self, x):
        if not hasattr(self, "late"):
            self.register_buffer("late", x.detach().mean(0))
        return x


def _train(first, more=(), each=lambda x: None, after=lambda: None, **how):
    run = samebits.init(seed=0, lanes=4, threads=1)
    model = nn.Sequential(first, nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(DATA), batch_size=14)
    more = [one(model) for one in more]
    model, optimizer, loader, *more = run.prepare(model, optimizer, loader, *more, **how)
    for _ in run.epochs(2):
        for step in run.steps(loader):
            for (x,) in step:
                each(x)
                for one in more:
                    one(x)
                run.backward(F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long, device=x.device)))
            optimizer.step()
            optimizer.zero_grad()
            for one in more:
                one.update_parameters(model)
    state = [*model.state_dict().values(), *(value for one in more for value in one.state_dict().values())]
    digest = hashlib.sha256(b"".join(one.cpu().contiguous().numpy().tobytes() for one in state)).hexdigest()
    samebits.finish()
    return digest, model


def ranges():
    digest, model = _train(Observer(), buffers={"*low": "min", "*high": "max"})
    assert torch.equal(model[0].low.cpu(), DATA.amin(0))
    assert torch.equal(model[0].high.cpu(), DATA.amax(0))
    return digest


def _average(model):
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)


def average_with_batch_norm():
    return _train(nn.BatchNorm1d(6), [_average])[0]


def average_with_ranges():
    """An average's buffers have rules too, by names that begin with `average`."""
    return _train(Observer(), [_average], buffers={"*low": "min", "average.*.high": "max", "0.high": "max"})[0]


def average_without_a_rule():
    _train(Observer(), [_average], buffers={"0.*": "min"})


def tracked_teacher():
    run = samebits.init(seed=0, lanes=4, threads=1)
    teacher = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).to(run.device)
    run.track(teacher=teacher)
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(TensorDataset(DATA), batch_size=14))
    for step in run.steps(loader):
        for (x,) in step:
            run.backward(F.mse_loss(model(x), teacher(x).detach()))
        optimizer.step()
        optimizer.zero_grad()
    means = teacher[1].running_mean.tolist()
    samebits.finish()
    return means


def unprepared_teacher(training=True):
    """What is said of a teacher that nobody prepared."""
    told = []
    other_buffers.say = told.append
    _train(nn.Identity(), each=nn.BatchNorm1d(6).train(training))
    return told


def sized_in_a_lane():
    _train(Observer(0))


def made_in_a_lane():
    _train(Cached())


def registered_in_a_lane():
    _train(Registers())


IN_A_LANE = {sized_in_a_lane: "'0.low'", made_in_a_lane: "'0.last'", registered_in_a_lane: "'0.late'"}
EQUAL = (ranges, average_with_batch_norm, average_with_ranges, tracked_teacher)
