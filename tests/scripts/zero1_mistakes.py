"""Mistakes under zero1, each with part of the sentence that every rank must raise."""

import copy

import torch
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader

import samebits
from tests.scripts import scenarios
from tests.scripts.zero1_scripts import Lamb, adamw, one_step, prepared


def mistake(body=None, *, make=adamw, end=None, **options):
    run, model, optimizer, loader = prepared(make, **options)
    for step in run.steps(loader):
        for images, labels in step:
            run.backward(F.cross_entropy(model(images), labels))
            if body is not None and step.number == 2:
                body(run, model, optimizer)
        if end is not None and step.number == 2:
            end(run, model, optimizer)
        optimizer.step()
        optimizer.zero_grad()


def state_on_one_rank():
    mistake(end=lambda run, model, optimizer: run.is_main and optimizer.state_dict())


def state_in_a_lane():
    mistake(lambda run, model, optimizer: optimizer.state_dict())


def state_of_one_parameter():
    mistake(end=lambda run, model, optimizer: optimizer.state[model[1].weight]["exp_avg"])


def a_copied_optimizer():
    mistake(end=lambda run, model, optimizer: copy.deepcopy(optimizer))


def step_on_one_rank():
    def step_twice(run, model, optimizer):
        if run.is_main:
            optimizer.step()

    mistake(end=step_twice)


def rate_of_the_rank():
    def change(run, model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 + run.rank)

    mistake(end=change)


def gradient_of_the_rank():
    mistake(end=lambda run, model, optimizer: model[1].weight.grad.mul_(1 + run.rank))


def missing_gradient():
    def forget(run, model, optimizer):
        if run.rank:
            model[1].weight.grad = None

    mistake(end=forget)


def parameter_of_the_rank():
    def write(run, model, optimizer):
        with torch.no_grad():
            model[1].weight.fill_(float(run.rank))

    mistake(end=write)


def unknown_optimizer():
    prepared(lambda model: Lamb(model.parameters(), 0.1))


def wrong_word():
    prepared(adamw, updates_by="tensor")


def listed_twice():
    def make(model):
        optimizer = adamw(model)
        optimizer.param_groups[0]["params"].append(model[1].weight)
        return optimizer

    prepared(make)


def state_after_the_end():
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        one_step(step, model, optimizer)
    samebits.finish()
    optimizer.state_dict()


def prepared_by_the_next_run():
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        one_step(step, model, optimizer)
    samebits.init(lanes=4).prepare(model, optimizer, DataLoader(scenarios.digits(96), batch_size=32))


def a_state_that_cannot_travel():
    class Odd(Lamb):
        def step(self, closure=None):
            super().step(closure)
            for state in self.state.values():
                state["odd"] = object()

    run, model, optimizer, loader = prepared(lambda model: Odd(model.parameters(), 0.1), updates_by="parameter")
    for step in run.steps(loader):
        one_step(step, model, optimizer)
    optimizer.state_dict()


def random_numbers_in_the_step():
    class Noisy(optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.add_(torch.randn_like(parameter))
            return super().step(closure)

    mistake(make=lambda model: Noisy(model.parameters(), 0.1), updates_by="element")


class Trusting(optim.Optimizer):
    """Assumes that there is a gradient."""

    def __init__(self, parameters, state):
        super().__init__(parameters, {"lr": 0.1})
        self.keeps_state = state

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if self.keeps_state:
                    self.state[parameter]["calls"] = 1
                else:
                    parameter.sub_(parameter.grad * group["lr"])


def closure_in_the_step():
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        one_step(step, model, optimizer)
        optimizer.step(lambda: 1.0)


def needs_every_gradient():
    mistake(make=lambda model: Trusting(model.parameters(), False), updates_by="element")


def keeps_a_state_without_a_gradient():
    mistake(make=lambda model: Trusting(model.parameters(), True), updates_by="element")


def with_a_table(make):
    run = samebits.init(lanes=4)
    table = torch.nn.Embedding(10, 4, sparse=True)
    run.prepare(table, make(table.parameters()))


def rows_only():
    with_a_table(optim.SparseAdam)


MISTAKES = {
    rows_only: "SparseAdam updates only the rows of sparse gradients, but under zero1 gradients are dense",
    closure_in_the_step: "but zero1 must prepare them before",
    needs_every_gradient: "must skip parameters whose grad is None",
    keeps_a_state_without_a_gradient: "made a state for a parameter",
    state_on_one_rank: "The ranks are not at the same place",
    state_in_a_lane: "optimizer.state_dict() was called inside the lane loop",
    state_of_one_parameter: "Call optimizer.state_dict() on every rank",
    a_copied_optimizer: "cannot be copied or pickled",
    step_on_one_rank: "The ranks are not at the same place",
    rate_of_the_rank: "AdamW has lr=0.1 on rank 0 but lr=0.2 on rank 1",
    gradient_of_the_rank: "gradients or parameters differ between ranks",
    missing_gradient: "have a gradient on some ranks only",
    parameter_of_the_rank: "gradients or parameters differ between ranks",
    unknown_optimizer: "zero1 does not know whether Lamb",
    wrong_word: 'Use "element" or "parameter"',
    listed_twice: "lists a parameter twice",
    state_after_the_end: "The run has ended",
    prepared_by_the_next_run: "of a run that has ended",
    random_numbers_in_the_step: "drew random numbers",
    a_state_that_cannot_travel: "'odd' is a object",
}
RANKS_DIFFER = {
    state_on_one_rank,
    step_on_one_rank,
    rate_of_the_rank,
    gradient_of_the_rank,
    missing_gradient,
    parameter_of_the_rank,
    random_numbers_in_the_step,
}
"""Those that would hang, or leave other bits, if nobody said so."""
