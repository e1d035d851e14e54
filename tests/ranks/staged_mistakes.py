"""Scripts that a strategy with stages must refuse, and the sentence that each gets."""

import torch
import torch.nn.functional as F
from staged_models import Tokens, images_data, tokens_data
from torch import nn
from torch.utils.data import DataLoader

import lockstep
from lockstep.layout.mesh import Form

MP, PP = Form("model_parallel"), Form("pipeline")


def loop(model, loss_of=None, data=None, cut=(), lanes=4, in_one_call=True):
    run = lockstep.init(lanes=lanes, threads=1)
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


def one_layer():
    loop(nn.Sequential(*head()))


def more_stages_than_layers():
    loop(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3)))


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.last = nn.Linear(128, 3)

    def forward(self, x):
        x = x.flatten(1)
        kept = self.first(x)
        return F.linear(torch.cat([self.second(kept + 1), kept], 1), self.last.weight)


def skip_connection():
    loop(Skips())


class Tied(Tokens):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.tokens.weight


def tied_layers():
    loop(Tied(), data=tokens_data)


class Boxes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 8), nn.Linear(8, 3)
        self.inner = Unboxing(self.second)

    def forward(self, x):
        return self.inner(Box(self.first(x.flatten(1))))


class Box:
    def __init__(self, value):
        self.value = value


class Unboxing(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, box):
        return self.layer(box.value * 2.0) + box.value.sum()


def activations_in_an_object():
    loop(Boxes())


def named_layer_that_does_not_exist():
    loop(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)), cut=["9"])


def too_many_named_layers():
    loop(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)), cut=["2", "3"])


def model_called_twice():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    loop(model, lambda batch: F.cross_entropy(model(batch[0]) + model(batch[0]), batch[1]))


def model_not_called():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    loop(model, lambda batch: F.cross_entropy(model[2](model[1](model[0](batch[0]))), batch[1]))


def loss_is_no_scalar():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    loop(model, lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"))


def loss_is_nothing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    loop(model, lambda batch: print(model(batch[0]).shape))


def pipeline_in_the_plain_loop():
    loop(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3)), in_one_call=False)


def two_models():
    run = lockstep.init(lanes=2, threads=1)
    run.prepare(nn.Linear(2, 2), nn.Linear(2, 2))


def compiled():
    run = lockstep.init(lanes=2, threads=1)
    run.prepare(torch.compile(nn.Linear(2, 2)))


def clips_by_torch():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    run = lockstep.init(lanes=2, threads=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(images_data(), batch_size=16))
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def cut_under_ddp():
    run = lockstep.init(lanes=2, threads=1)
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


class Batch:
    pass


class Wraps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))

    def forward(self, x):
        result = Batch()
        result.logits = self.layers(x)
        return result


def result_of_an_own_class():
    model = Wraps()
    loop(model, lambda batch: F.cross_entropy(model(batch[0]).logits, batch[1]))


MISTAKES = {
    one_layer: (2, MP, "Sequential can be cut nowhere, so it makes at most 1 stage, but 2 are asked for"),
    more_stages_than_layers: (3, MP, "can be cut only before 2, so it makes at most 2 stages, but 3 are asked for"),
    skip_connection: (2, MP, "goes around it (a skip connection)"),
    tied_layers: (2, PP, "tokens.weight is used on both sides of"),
    activations_in_an_object: (2, MP, "can be cut nowhere"),
    named_layer_that_does_not_exist: (
        2,
        MP,
        "No stage of Sequential can begin with '9': it is not called. Possible are:",
    ),
    too_many_named_layers: (2, MP, "names 2 layers that begin a stage, but 2 stages need 1"),
    model_called_twice: (2, PP, "called the model 2 times, but a pipeline needs exactly one call"),
    model_not_called: (2, PP, "did not call the model as model(...)"),
    loss_is_no_scalar: (2, PP, "run.backward needs a scalar loss"),
    loss_is_nothing: (2, PP, "returned NoneType, but a pipeline needs a scalar loss"),
    pipeline_in_the_plain_loop: (2, PP, "has no place for it. Hand over a function that calls the model once"),
    two_models: (2, MP, "model_parallel cuts one model into stages, but 2 were prepared"),
    compiled: (2, PP, "Prepare it without torch.compile"),
    clips_by_torch: (2, MP, "meta"),
    cut_under_ddp: (2, Form("ddp"), "cut=['0'] is for model_parallel and pipeline, but the strategy is ddp"),
    reads_the_whole_state: (2, MP, "run.save_weights"),
    decides_by_values: (2, MP, "cannot be followed without the layers of other stages"),
    result_of_an_own_class: (2, MP, "which cannot be sent to the other stages"),
}
