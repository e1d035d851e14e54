"""Scripts that a strategy with stages must refuse, and the sentence that each gets."""

import copy
import os
import pickle

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.protocol.layout.mesh import Form
from tests.scripts.staged_models import images_data

MP, PP = Form("model_parallel"), Form("pipeline")


def loop(model, loss_of=None, data=None, cut=(), lanes=4, in_one_call=True):
    run = samebits.init(lanes=lanes, threads=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader((data or images_data)(), batch_size=16)
    run.prepare(model, optimizer, cut=cut)
    loader = run.prepare(loader)
    loss_of = loss_of or (lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
    for step in run.steps(loader):
        if in_one_call:
            step.backward(loss_of)
        else:
            for batch in step:
                run.backward(loss_of(batch))
        optimizer.step()
        optimizer.zero_grad()


def head(inputs=64):
    return [nn.Flatten(), nn.Linear(inputs, 3)]


def model_called_twice():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    loop(model, lambda batch: F.cross_entropy(model(batch[0]) + model(batch[0]), batch[1]))


def model_not_called():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    loop(model, lambda batch: F.cross_entropy(model[2](model[1](model[0](batch[0]))), batch[1]))


def loss_is_nothing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    loop(model, lambda batch: print(model(batch[0]).shape))


def pipeline_in_the_plain_loop():
    loop(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3)), in_one_call=False)


def two_models():
    run = samebits.init(lanes=2, threads=1)
    run.prepare(nn.Linear(2, 2), nn.Linear(2, 2))


def compiled():
    run = samebits.init(lanes=2, threads=1)
    run.prepare(torch.compile(nn.Linear(2, 2)))


def compiled_after_the_cut():
    model, calls = small(), []
    quicker = torch.compile(model, backend="eager")

    def loss_of(batch):
        calls.append(model if len(calls) < 8 else quicker)
        return F.cross_entropy(calls[-1](batch[0]), batch[1])

    loop(model, loss_of)


def clips_by_torch():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    run = samebits.init(lanes=2, threads=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(images_data(), batch_size=16))
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def cut_under_ddp():
    run = samebits.init(lanes=2, threads=1)
    run.prepare(nn.Linear(2, 2), cut=["0"])


def reads_the_whole_state():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    loop(model)
    model.state_dict()


class Decides(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x.flatten(1))
        if x.abs().max().item() > 0:
            x = x * 2.0
        return self.last(self.second(x))


def decides_by_values():
    loop(Decides())


class Unfollowable(nn.Module):
    """After the cut it depends on values; what it returns has no well-known form, or it keeps state."""

    def __init__(self, counts):
        super().__init__()
        self.counts, self.calls = counts, 0
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.last(self.first(x.flatten(1)))
        self.calls += self.counts
        result = Result()
        result.logits = x if float(x.detach().max()) > 0 else x * 2
        return result.logits if self.counts else result


class Result:
    pass


def result_of_an_own_class():
    model = Unfollowable(0)
    loop(model, lambda batch: F.cross_entropy(model(batch[0]).logits, batch[1]))


def state_that_cannot_be_followed():
    loop(Unfollowable(1))


class Auxiliary(nn.Module):
    """A loss of its own, kept as an attribute."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.last(torch.tanh(self.first(x.flatten(1))))
        self.penalty = x.square().mean()
        return x


def reads_what_forward_left():
    model = Auxiliary()
    loop(model, lambda batch: F.cross_entropy(model(batch[0]), batch[1]) + model.penalty)


class LooksAtRank(nn.Module):
    def __init__(self, run_rank):
        super().__init__()
        self.rank, self.first, self.last = run_rank, nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.first(x.flatten(1))) * (1 + 0.1 * self.rank)


def forward_that_looks_at_the_rank():
    loop(LooksAtRank(int(os.environ["RANK"])))


def keeps_a_loss_for_later():
    model, kept = small(), []
    run = samebits.init(lanes=4, threads=1)
    model, loader = run.prepare(model, DataLoader(images_data(), batch_size=16))
    for step in run.steps(loader):
        for images, labels in step:
            run.backward(F.cross_entropy(model(images), labels) + 0 * sum(kept))
            kept.append(sum(p.square().sum() for p in model.parameters() if not p.is_meta))


class Lamb(torch.optim.Optimizer):
    """Divides by the norm of all gradients, which a stage does not have."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self):
        there = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in there]))
        with torch.no_grad():
            for parameter in there:
                parameter.sub_(0.1 * parameter.grad / norm)


def optimizer_that_nobody_knows():
    model = small()
    samebits.init(lanes=4, threads=1).prepare(model, Lamb(model.parameters()))


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))


def after_a_step(change):
    """Train, then do with the cut model what `change` does."""
    model = small()
    loop(model)
    change(model)


def averages_a_cut_model():
    model = small()
    average = copy.deepcopy(model)
    loop(model)
    with torch.no_grad():
        for mean, value in zip(average.parameters(), model.parameters(), strict=True):
            mean.mul_(0.9).add_(value.data, alpha=0.1)


def averages_a_cut_model_at_once():
    model = small()
    average = copy.deepcopy(model)
    loop(model)
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.1)


def penalty_in_the_loop():
    model = small()
    loop(model, lambda batch: F.cross_entropy(model(batch[0]), batch[1]) + sum(p.sum() for p in model.parameters()))


def noise_on_parameters():
    after_a_step(lambda model: [p.data.add_(torch.randn_like(p)) for p in model.parameters()])


def copies_layers():
    after_a_step(lambda model: [copy.deepcopy(layer) for layer in model])


def pickles_parameters():
    after_a_step(lambda model: pickle.dumps(list(model.parameters())))


class Late(nn.Module):
    """One layer is called in evaluation only."""

    def __init__(self):
        super().__init__()
        self.first, self.late, self.last = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x.flatten(1))
        return self.last(x if self.training else self.late(x))


def calls_other_layers_later():
    model = Late()
    loop(model)
    model.eval()(torch.ones(2, 64))


def gradients_by_hand():
    run = samebits.init(lanes=2, threads=1)
    model = small()
    model, loader = run.prepare(model, DataLoader(images_data(), batch_size=16))
    for step in run.steps(loader):
        for images, _ in step:
            images.requires_grad_()
            torch.autograd.grad(model(images).sum(), images, allow_unused=True, create_graph=True)


ELSEWHERE = "which another stage holds"


def evaluates_on_one_rank(number):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    run = samebits.init(lanes=4, threads=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(images_data(), batch_size=16)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
        if run.rank == number:
            with torch.no_grad():
                model(images_data()[0][0].expand(4, -1, -1, -1))  # the shape of a lane's batch


def evaluates_on_rank_0():
    evaluates_on_one_rank(0)


MISTAKES = {
    evaluates_on_rank_0: (2, MP, "The stages are at different calls of the model: stage 0 at call"),
    averages_a_cut_model: (2, MP, ELSEWHERE),
    averages_a_cut_model_at_once: (2, MP, ELSEWHERE),
    penalty_in_the_loop: (2, PP, ELSEWHERE),
    noise_on_parameters: (2, MP, "randn_like draws random numbers for"),
    copies_layers: (2, MP, "a copy would have the layers of this rank only"),
    pickles_parameters: (2, MP, "a file written here would not contain it"),
    calls_other_layers_later: (2, MP, ELSEWHERE),
    gradients_by_hand: (2, MP, "not from torch.autograd.grad or Tensor.backward"),
    model_called_twice: (2, PP, "called the model 2 times, but a pipeline needs exactly one call"),
    model_not_called: (2, PP, "did not call the model as model(...)"),
    loss_is_nothing: (2, PP, "returned NoneType, but a pipeline needs a scalar loss"),
    pipeline_in_the_plain_loop: (
        2,
        PP,
        "cannot use the loop `for batch in step`. Pass a function that calls the model once",
    ),
    two_models: (2, MP, "model_parallel cuts one model into stages, but 2 were prepared"),
    compiled: (2, PP, "Prepare it without torch.compile"),
    compiled_after_the_cut: (2, MP, "torch.compile hides the layers of a prepared Sequential"),
    clips_by_torch: (2, MP, "meta"),
    cut_under_ddp: (2, Form("ddp"), "cut=['0'] is for model_parallel and pipeline, but the strategy is ddp"),
    reads_the_whole_state: (2, MP, "run.save_weights"),
    decides_by_values: (2, MP, "cannot be followed without the layers of other stages"),
    result_of_an_own_class: (2, MP, "returns a Result, and its forward cannot be followed to its end"),
    state_that_cannot_be_followed: (2, PP, "Unfollowable changes calls in forward, and its forward cannot be followed"),
    reads_what_forward_left: (2, MP, "needs a value that another stage computed"),
    forward_that_looks_at_the_rank: (2, MP, "Ranks 0 and 1 ran the whole model on the same samples"),
    keeps_a_loss_for_later: (2, MP, "A backward ran through the lane in which the model was cut into stages"),
    optimizer_that_nobody_knows: (2, PP, "pipeline does not know whether Lamb updates each element"),
}
