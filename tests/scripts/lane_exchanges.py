"""Scripts that exchange something themselves, inside lanes and outside. Run by `test_lane_exchanges`."""

import hashlib
import threading

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from torch import nn
from torch.distributed import all_reduce
from torch.distributed._functional_collectives import all_reduce as all_reduce_functionally
from torch.utils.data import DataLoader, TensorDataset

import samebits


def there_is_a_group():
    return dist.is_available() and dist.is_initialized()


def number_of_ranks():
    if not there_is_a_group():
        return 1
    return dist.get_world_size()


def is_main():
    return not there_is_a_group() or dist.get_rank() == 0


def _train(loss_of, after=lambda: None, prepared=lambda: None, **how):
    run = samebits.init(seed=0, lanes=4, threads=1)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(inputs, torch.arange(32) % 3), batch_size=16)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    prepared()
    for step in run.steps(loader):
        step.backward(lambda batch: loss_of(model, batch), **how)
        after()
        optimizer.step()
        optimizer.zero_grad()
    bits = hashlib.sha256(model.weight.detach().cpu().numpy().tobytes()).hexdigest()
    samebits.finish()
    return bits


def _loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def guarded():
    def loss(model, batch):
        boxes = torch.tensor([float(len(batch[0]))])
        if there_is_a_group():
            dist.all_reduce(boxes)
        return _loss(model, batch) / (boxes / number_of_ranks()).clamp(min=1).item()

    _train(loss)


def returns_early():
    def gathered(tensor):
        world_size = number_of_ranks()
        if world_size == 1:
            return [tensor]
        found = [torch.zeros_like(tensor) for _ in range(world_size)]
        dist.all_gather(found, tensor)
        return found

    _train(lambda model, batch: _loss(model, batch) * sum(gathered(torch.ones(1))).item())


def differentiable():
    def loss(model, batch):
        features = model(batch[0])
        if dist.is_initialized():
            features = torch.cat(torch.distributed.nn.all_gather(features))
        return features.square().mean()

    _train(loss)


def without_a_question():
    def loss(model, batch):
        all_reduce(batch[0])
        return _loss(model, batch)

    _train(loss)


def in_a_loss_over_the_batch():
    def loss(features):
        if dist.is_initialized():
            dist.broadcast(features.detach(), 0)
        return features.square().mean()

    _train(lambda model, batch: model(batch[0]), over_batch=loss)


def in_a_hook():
    def hooked(gradient):
        if dist.is_initialized():
            dist.all_reduce(gradient)
        return gradient

    def loss(model, batch):
        outputs = model(batch[0])
        outputs.register_hook(hooked)
        return F.cross_entropy(outputs, batch[1])

    _train(loss)


def of_the_group_itself():
    def loss(model, batch):
        if dist.is_initialized():
            dist.group.WORLD.allreduce([batch[0]])
        return _loss(model, batch)

    _train(loss)


def _own_group():
    """Gloo's, in any run; one rank has no default group."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.new_group(backend="gloo")


def asks_for_the_size_too():
    def loss(model, batch):
        if dist.is_initialized():
            size = dist.get_world_size()
            if size > 1 or dist.get_world_size() > 0:
                dist.all_reduce(batch[0])
        return _loss(model, batch)

    _train(loss)


def of_an_own_group():
    def loss(model, batch):
        boxes = torch.tensor([float(len(batch[0]))])
        groups[0].allreduce([boxes]).wait()
        return _loss(model, batch) / boxes.item()

    groups = []
    _train(loss, prepared=lambda: groups.append(_own_group()))


def functional():
    def loss(model, batch):
        boxes = all_reduce_functionally(torch.ones(1), "sum", groups[0])
        return _loss(model, batch) / boxes.item()

    groups = []
    _train(loss, prepared=lambda: groups.append(_own_group()))


def own_group_in_a_loss_over_the_batch():
    def loss(features):
        groups[0].barrier().wait()
        return features.square().mean()

    groups = []
    _train(lambda model, batch: model(batch[0]), prepared=lambda: groups.append(_own_group()), over_batch=loss)


def beside_lanes():
    """What another thread exchanges while lanes are computed."""

    def loss(model, batch):
        if not threads:
            threads.append(threading.Thread(target=lambda: dist.all_reduce(torch.ones(1), group=groups[0])))
            threads[0].start()
            threads[0].join()
        return _loss(model, batch)

    groups, threads = [], []
    return _train(loss, lambda: groups[0].barrier().wait(), prepared=lambda: groups.append(_own_group()))


def outside_lanes():
    """A main process that logs in its lanes, a switch that is off, and an exchange after them."""

    def loss(model, batch, *, sync=False):
        if is_main():
            assert len(batch)
        if dist.is_initialized() and sync:
            dist.all_reduce(batch[0])
        return _loss(model, batch)

    def after():
        if there_is_a_group():
            dist.all_reduce(torch.ones(1))

    return _train(loss, after)


INSIDE = {
    guarded: "all_reduce",
    returns_early: "all_gather",
    differentiable: "all_gather",
    without_a_question: "all_reduce",
    in_a_loss_over_the_batch: "broadcast",
    in_a_hook: "all_reduce",
    asks_for_the_size_too: "all_reduce",
    of_an_own_group: "A call of a process group",
    functional: "A call of a process group",
    own_group_in_a_loss_over_the_batch: "A call of a process group",
}
