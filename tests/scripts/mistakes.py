"""Scripts that cannot be right, each with part of the sentence that must be said. Run on two ranks by `test_misuse`."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits


def parts():
    run = samebits.init(seed=0, lanes=4)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(40, 64), torch.randint(0, 10, (40,))), batch_size=16)
    return run, model, optimizer, loader


def loop(body=None, after=None, *, prepare=True, buffers=None):
    run, model, optimizer, loader = parts()
    if prepare:
        model, optimizer, loader = run.prepare(model, optimizer, loader, buffers=buffers)
    for step in run.steps(loader):
        for inputs, labels in step:
            loss = F.cross_entropy(model(inputs), labels)
            if body:
                body(run, model, optimizer, loss)
            else:
                run.backward(loss)
        if after:
            after(run, model, optimizer, step, loader)
        optimizer.step()
        optimizer.zero_grad()


class RankBuffer(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
        self.register_buffer("last", torch.zeros(1))

    def forward(self, inputs):
        self.last.fill_(inputs.sum().item())
        return super().forward(inputs)


def scripted():
    run, model, _, _ = parts()
    run.prepare(torch.jit.trace(model, torch.zeros(1, 64)))


def bare_backward():
    loop(lambda run, model, optimizer, loss: loss.backward())


def optimizer_in_lane():
    loop(lambda run, model, optimizer, loss: (run.backward(loss), optimizer.step()))


def zero_grad_in_lane():
    loop(lambda run, model, optimizer, loss: (optimizer.zero_grad(), run.backward(loss)))


class Inner(nn.Module):
    """Trains a part of itself in forward, with an optimizer of its own."""

    def __init__(self, how):
        super().__init__()
        self.how, self.inner, self.head = how, nn.Linear(64, 64), nn.Linear(64, 10)
        self.own = torch.optim.SGD(self.inner.parameters(), lr=0.1)

    def forward(self, x):
        error = (self.inner(x) - x).square().mean()
        if self.how == "backward":
            error.backward()
        for one, gradient in zip(
            self.inner.parameters(), torch.autograd.grad(error, [*self.inner.parameters()]), strict=True
        ):
            one.grad = gradient
        self.own.step()
        return self.head(self.inner(x))


def train_inside(how):
    run, _, _, loader = parts()
    model = Inner(how)
    model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.head.parameters(), lr=0.1), loader)
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()


def step_in_forward():
    train_inside("own")


def backward_in_forward():
    train_inside("backward")


def collective_in_lane():
    loop(lambda run, model, optimizer, loss: (run.backward(loss), run.mean(loss.item())))


def barrier_in_evaluation():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in loader:
        run.barrier()


def backward_outside():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    run.backward(model(torch.randn(2, 64)).sum())


def reading_ahead():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in list(run.steps(loader)):
        for _ in step:
            pass


def left_early():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
            break
        optimizer.step()


def detached_loss():
    loop(lambda run, model, optimizer, loss: run.backward(loss.detach()))


def two_weights():
    loop(lambda run, model, optimizer, loss: (run.backward(0.5 * loss, weight=3), run.backward(loss * loss, weight=4)))


def some_weights():
    count = []

    def body(run, model, optimizer, loss):
        count.append(1)
        run.backward(loss, weight=3) if len(count) % 2 and run.rank == 0 else run.backward(loss)

    loop(body)


def nested_steps():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.steps(loader):
        for _ in run.steps(loader):
            pass


def unprepared_loader():
    loop(prepare=False)


def number_as_loss():
    loop(lambda run, model, optimizer, loss: run.backward(loss.item()))


def swapped_results():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, loader, optimizer)
    run.steps(loader)


def rank_order():
    run, model, optimizer, loader = parts()
    generator = torch.Generator().manual_seed(run.rank)
    loader = DataLoader(loader.dataset, batch_size=8, shuffle=True, generator=generator)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    next(iter(run.steps(loader)))


def rank_seed():
    samebits.init(seed=int(os.environ["RANK"]))


def rank_branch():
    run, *_ = parts()
    if run.is_main:
        run.mean(1.0)
    else:
        run.barrier()


def ends_early():
    run, *_ = parts()
    if run.is_main:
        run.barrier()


def buffer_of_rank():
    run, _, _, loader = parts()
    model = RankBuffer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs):
        self.seen += len(inputs)
        return super().forward(inputs)


def counter_of_lanes():
    run, _, _, loader = parts()
    model = Counting()
    model, loader = run.prepare(model, loader)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))


def sum_of_switches():
    run, _, _, _ = parts()
    model = nn.Linear(3, 3)
    model.register_buffer("on", torch.tensor([True]))
    run.prepare(model, buffers={"on": "sum"})


def lane_sum_of_a_rank():
    loop(after=lambda run, model, optimizer, step, loader: run.lane_sum(torch.zeros(3)))


def lane_sum_of_a_part():
    loop(after=lambda run, model, optimizer, step, loader: run.lane_sum([torch.zeros(3)]))


def rows_without_a_dimension():
    loop(after=lambda run, model, optimizer, step, loader: run.lane_cat([torch.zeros(()) for _ in step.lanes]))


def rows_of_a_part():
    loop(after=lambda run, model, optimizer, step, loader: run.lane_cat([torch.zeros(3)]))


def a_value_kept_in_a_lane():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        for _ in step:
            run.state.seen = step.lane


def wrong_rule():
    loop(buffers={"x": "median"})


def tally_outside():
    run, *_ = parts()
    run.tally().add(loss=1.0)


def wrong_rows():
    run, _, _, loader = parts()
    loader = run.prepare(loader)
    for _ in loader:
        pass
    run.gather(torch.zeros(3))


def few_lanes():
    samebits.init(lanes=1)


def step_loss_too_early():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        print(step.loss)


def max_norm():
    run, _, _, loader = parts()
    model = nn.Sequential(nn.Embedding(10, 4, max_norm=0.1), nn.Linear(4, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[1]), batch[1]))


def hidden_write():
    loop(lambda run, model, optimizer, loss: (run.backward(loss), model.weight.data.mul_(0.9)))


def skipped_on_one_rank():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        try:
            for inputs, labels in step:
                if run.rank == 1 and step.number == 2:
                    raise MemoryError
                run.backward(F.cross_entropy(model(inputs), labels))
        except MemoryError:
            continue
        optimizer.step()
        optimizer.zero_grad()


def zipped():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    other = run.prepare(DataLoader(loader.dataset, batch_size=16))
    for _ in zip(run.steps(loader), run.steps(other), strict=True):
        pass


def old_loader():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    again = samebits.init(lanes=4)
    again.prepare(nn.Linear(2, 2))
    for _ in again.steps(loader):
        pass


class Growing(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
        self.register_buffer("cache", torch.zeros(2))

    def forward(self, inputs):
        self.cache = torch.zeros(len(self.cache) + 1)
        return super().forward(inputs)


def growing_buffer():
    run, _, _, loader = parts()
    model = Growing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))


def no_step():
    run, model, optimizer, _ = parts()
    loader = DataLoader(TensorDataset(torch.randn(5, 64)), batch_size=16, drop_last=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.steps(loader):
        pass


def negative_norm():
    loop(after=lambda run, model, optimizer, step, loader: run.clip_grad_norm_(model.parameters(), 1.0, norm_type=-1))


def steps_on_one_rank():
    run, model, optimizer, loader = parts()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in range(2):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            if run.is_main:
                optimizer.step()
            optimizer.zero_grad()


def rate_of_rank():
    run, model, optimizer, loader = parts()
    optimizer.param_groups[0]["lr"] = 0.1 * (1 + run.rank)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    samebits.finish()


def text_to_log():
    run, *_ = parts()
    run.log(loss="small")


MISTAKES = {
    text_to_log: "A value to log or tally must be one number, but is 'small'",
    max_norm: "A parameter (0.weight) was changed inside a step's lanes",
    hidden_write: "A parameter (one of them) was changed inside a step's lanes",
    skipped_on_one_rank: "is at 'step 2 pass 1'",
    zipped: "run.steps was started inside another step",
    old_loader: "This loader belongs to an earlier samebits.init",
    growing_buffer: "The buffer 'cache' changed from (2,) torch.float32 to (3,)",
    no_step: "The epoch has no step",
    negative_norm: "`norm_type` must be above 0",
    scripted: "TopLevelTracedModule is, or holds, a module of torch.jit",
    bare_backward: "loss.backward() was called on a prepared model",
    optimizer_in_lane: "optimizer.step() was called inside a step's lanes",
    step_in_forward: "SGD.step() was called inside a step's lanes, where the gradient of a prepared model is not complete (mistakes.py:",
    backward_in_forward: "torch.func.functional_call",
    zero_grad_in_lane: "Gradients were changed inside a step's lanes",
    collective_in_lane: "run.mean was called inside the lane loop",
    barrier_in_evaluation: "run.barrier was called while iterating a prepared loader",
    backward_outside: "run.backward was called outside a step's lanes",
    reading_ahead: "This step is over",
    left_early: "the loop over the step's lanes was left early",
    detached_loss: "The loss does not require grad",
    two_weights: "a lane has one weight",
    some_weights: "Some lanes called run.backward with weight= and some without",
    nested_steps: "run.steps was called inside another step",
    unprepared_loader: "run.steps needs the loader that run.prepare returned",
    rank_order: "The samples or their order are not the same on every rank",
    rank_seed: "`seed` must be the same on every rank, but the ranks have [0, 1]",
    rank_branch: "rank 1 is at 'run.barrier' (mistakes.py:",
    ends_early: "rank 1 is at 'the end of the script'",
    buffer_of_rank: "The lanes left different values in the buffer 'last'",
    wrong_rule: 'Use "sum", "first", "mean", "min" or "max"',
    counter_of_lanes: 'Pass buffers={"seen": "sum"} to run.prepare if it counts samples',
    sum_of_switches: "cannot add up 'on', whose dtype is torch.bool",
    lane_sum_of_a_rank: "takes a list with one tensor for each lane, but got a tensor of shape (3,)",
    rows_without_a_dimension: "tensors without a dimension",
    rows_of_a_part: "run.lane_cat got 1 tensors on rank 0, which has 2 lanes with samples",
    a_value_kept_in_a_lane: "run.state.seen was assigned inside a lane",
    lane_sum_of_a_part: "got 1 tensors on rank 0, which has 2 lanes with samples",
    tally_outside: "tally.add was called outside a batch loop",
    wrong_rows: "run.gather got 3 rows on rank 0, but the last evaluation gave it",
    step_loss_too_early: "step.loss is known after the step's lanes",
}
