"""Things that `run.prepare` refuses, each with part of the sentence that must be said; beside `mistakes`."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import samebits
from tests.scripts.mistakes import parts


class NoLength:
    def __getitem__(self, index):
        return index


class OwnLoader(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


def twice():
    run, model, optimizer, loader = parts()
    run.prepare(model, optimizer, loader)
    run.prepare(model)


def foreign_optimizer():
    run, model, _, loader = parts()
    run.prepare(model, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), loader)


def half_foreign_optimizer():
    run, model, _, loader = parts()
    others = [*model.parameters(), *nn.Linear(2, 2).parameters()]
    run.prepare(model, torch.optim.SGD(others, lr=0.1), loader)


def no_length():
    run, *_ = parts()
    run.prepare(DataLoader(NoLength(), batch_size=2, sampler=range(9)))


def batches_by_the_clock():
    run, *_ = parts()
    run.prepare(DataLoader(range(9), batch_size=2, num_workers=1, in_order=False))


def no_batch_size():
    run, *_ = parts()
    run.prepare(DataLoader(range(9), batch_size=None))


def own_iteration():
    run, *_ = parts()
    run.prepare(OwnLoader(range(9), batch_size=3))


def wrapped_model():
    run, model, *_ = parts()
    run.prepare(nn.DataParallel(model))


def other_thing():
    run, *_ = parts()
    run.prepare(3)


def rank_model():
    run, *_ = parts()
    torch.manual_seed(run.rank)
    run.prepare(nn.Linear(3, 2))


def rank_shape():
    run, *_ = parts()
    run.prepare(nn.Linear(3, 2 + run.rank))


def rank_length():
    run, *_ = parts()
    run.prepare(DataLoader(range(9 + run.rank), batch_size=3))


def rank_samples():
    run, *_ = parts()
    run.prepare(DataLoader([run.rank] * 9, batch_size=3))


def tied_by_data():
    run, *_ = parts()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight.data = model[0].weight.data
    run.prepare(model)


def sparse_adam():
    run, model, *_ = parts()
    run.prepare(model, torch.optim.SparseAdam(model.parameters()))


def lazy_buffers():
    run, *_ = parts()
    run.prepare(nn.LazyBatchNorm1d(affine=False))


def synchronised_norm():
    run, *_ = parts()
    run.prepare(nn.SyncBatchNorm(3))


def synchronised_norm_on_cpu():
    samebits.init(lanes=2).prepare(nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3)))


REFUSED = {
    tied_by_data: "are different tensors in the same memory",
    sparse_adam: "SparseAdam needs sparse gradients, but that of a parameter of shape (10, 64) on cpu would be dense",
    lazy_buffers: "LazyBatchNorm1d.running_mean has no shape yet",
    synchronised_norm: "SyncBatchNorm communicates inside lanes",
    synchronised_norm_on_cpu: "torch's SyncBatchNorm needs GPUs, but the ranks are on the CPU",
    twice: "the same Linear twice",
    foreign_optimizer: "SGD updates no parameter of the prepared model",
    half_foreign_optimizer: "SGD updates 2 tensors that belong to no prepared model",
    no_length: "NoLength has no length",
    batches_by_the_clock: "in_order=False",
    no_batch_size: "batch_size=None",
    own_iteration: "OwnLoader iterates in its own way",
    wrapped_model: "Pass the model without DataParallel",
    other_thing: "does not know what to do with int",
    rank_model: "'Linear.weight' has different values on rank 1 than on rank 0",
    rank_shape: "'Linear.weight' is (2, 3) float32 on rank 0 but (3, 3) float32 on rank 1",
    rank_length: "The data set has ",
    rank_samples: "The data set has different samples on rank",
}
