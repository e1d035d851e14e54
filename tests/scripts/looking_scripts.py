"""What scripts do with an optimizer under `ddp` and `zero1` refuses: by default they run, with the bits of one rank.

Each returns what it saw. Some look on one rank only: what every rank does must not depend on it.
"""

import copy
import io

import torch
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader

import lockstep
from lockstep.run import start
from lockstep.strategy.shown_state import SeenState, ShownState
from lockstep.testing.digests import digest_of
from tests.scripts import embeddings, scenarios
from tests.scripts.zero1_scripts import Lamb, adamw, one_step, prepared


def strategy():
    """What the run does at the moment."""
    return start._present[-1].machinery.strategy.name


def looking(end, *, make=adamw, after=lambda run, model, optimizer: None, model=None):
    """A loop that calls `end` before the second update, and `after` behind it; what both returned, and the bits."""
    run, model, optimizer, loader = prepared(make, model)
    told, bits = [], []
    for _ in run.epochs(2):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            if step.number == 2:
                told.append(end(run, model, optimizer))
            optimizer.step()
            if step.number == 2:
                told.append(after(run, model, optimizer))
            optimizer.zero_grad()
            bits.append(digest_of(model))
    return told, bits, digest_of(optimizer)


def state_on_one_rank():
    def look(run, model, optimizer):
        return digest_of(optimizer) if run.rank == run.world_size - 1 else None

    return looking(look)[1:]


def state_on_one_rank_after_the_first_update():
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        one_step(step, model, optimizer)
        if step.number == 1 and run.is_main:
            optimizer.state_dict()
    return digest_of(model, optimizer)


def state_in_a_lane():
    run, model, optimizer, loader = prepared(adamw)
    seen = []
    for step in run.steps(loader):
        for images, labels in step:
            run.backward(F.cross_entropy(model(images), labels))
            if step.number == 2:
                seen.append(digest_of(optimizer))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model, optimizer), seen[0]


def state_of_one_parameter():
    return looking(lambda run, model, optimizer: digest_of(optimizer.state[model[1].weight]["exp_avg"]))


def state_that_is_written_to():
    def write(run, model, optimizer):
        optimizer.state[model[1].weight]["exp_avg"].mul_(0.5)
        optimizer.state[model[3].bias]["step"].zero_()

    return looking(write)


def state_that_is_kept():
    """What `state_dict` returns is what goes on being updated."""
    kept = {}

    def keep(run, model, optimizer):
        kept.update(optimizer.state_dict())

    found = looking(keep)
    return found, digest_of(kept["state"][0]["exp_avg"])


def state_taken_out():
    return looking(lambda run, model, optimizer: sorted(optimizer.state.pop(model[1].weight)))


def state_counted():
    return looking(lambda run, model, optimizer: [len(optimizer.state), model[1].weight in optimizer.state])


def a_copied_optimizer():
    def copied(run, model, optimizer):
        another = copy.deepcopy(optimizer)
        return digest_of(another), type(another.state).__name__

    return looking(copied)


def a_pickled_optimizer():
    def pickled(run, model, optimizer):
        file = io.BytesIO()
        torch.save(optimizer, file)
        file.seek(0)
        return digest_of(torch.load(file, weights_only=False))

    return looking(pickled)


def a_state_loaded_twice():
    """torch's `load_state_dict` takes the tensors themselves, so what was kept goes on being updated."""
    kept = {}

    def keep(run, model, optimizer):
        kept.update(copy.deepcopy(optimizer.state_dict()))
        optimizer.load_state_dict(kept)

    found = looking(keep, after=lambda run, model, optimizer: optimizer.load_state_dict(kept))
    return found, digest_of(kept["state"][0]["exp_avg"])


def an_optimizer_that_had_made_updates():
    model = scenarios.mlp()
    optimizer = adamw(model)
    torch.manual_seed(3)
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept = optimizer.state_dict()
    found = looking(lambda *_: None, make=lambda _: optimizer, model=model)
    return found, digest_of(kept["state"][0]["exp_avg"])


def a_closure():
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        one_step(step, model, optimizer)
        optimizer.step(lambda: 1.0)
    return digest_of(model, optimizer)


def with_updates(make):
    """A model and an optimizer that has a state, which nobody else holds."""
    model = scenarios.mlp()
    optimizer = make(model)
    torch.manual_seed(3)
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    other = make(model)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return model, other


def a_state_that_was_there_and_is_seen_before_the_first_update():
    """As after a resume by hand: no rank has left its share where others could read it."""
    found = []
    for look in (digest_of, lambda optimizer: len(optimizer.state), copy.deepcopy):
        model, made = with_updates(adamw)
        run, model, optimizer, loader = prepared(lambda _, made=made: made, model)
        seen = look(optimizer) if run.is_main or look is digest_of else None
        for step in run.steps(loader):
            one_step(step, model, optimizer)
        found.append((digest_of(model, optimizer), seen if look is digest_of else None))
        lockstep.finish()
    return found


def a_closure_at_the_first_update():
    """Adagrad has a state from the beginning."""
    run, model, optimizer, loader = prepared(lambda model: optim.Adagrad(model.parameters(), lr=1e-2))
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step(lambda: 1.0)
        optimizer.zero_grad()
    return digest_of(model, optimizer)


def everything_loaded_again_at_every_step():
    """Reptile, and a rollback: also where one rank keeps what it loaded."""
    run, model, optimizer, loader = prepared(adamw)
    weights, kept, state = copy.deepcopy(model.state_dict()), None, None
    for epoch in run.epochs(2):
        for step in run.steps(loader):
            one_step(step, model, optimizer)
            if state is None:
                state = copy.deepcopy(optimizer.state_dict())
            elif epoch == 0:
                model.load_state_dict(weights)
                loaded = copy.deepcopy(state)
                optimizer.load_state_dict(loaded)
                kept = loaded if run.is_main else None
    return digest_of(model, optimizer), kept is None or digest_of(kept["state"][0]["exp_avg"]) != ""


def a_scheduler_made_before_prepare():
    """It puts a `step` of its own in the place of the optimizer's; that alone is no reason to divide nothing."""
    schedulers = []

    def make(model):
        optimizer = adamw(model)
        schedulers.append(optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        return optimizer

    run, model, optimizer, loader = prepared(make)
    names = []
    for step in run.steps(loader):
        one_step(step, model, optimizer)
        schedulers[0].step()
        names.append(strategy())
    return digest_of(model, optimizer), run.world_size == 1 or names == ["zero1"] * len(names)


def an_unknown_optimizer_besides():
    run, model, _, loader = prepared(adamw)
    other = run.prepare(Lamb(model.parameters(), 0.1))
    for step in run.steps(loader):
        one_step(step, model, other)
    return digest_of(model, other), strategy()


def two_models_prepared_apart():
    run = lockstep.init(seed=0, lanes=4)
    first, second = scenarios.mlp(), scenarios.mlp()
    one = optim.SGD(first.parameters(), 0.1, momentum=0.9)
    first, one = run.prepare(first, one)
    other = adamw(second)
    second, other, loader = run.prepare(second, other, DataLoader(scenarios.digits(96), batch_size=32))
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(first(batch[0]) + second(batch[0]), batch[1]))
        one.step()
        if step.number == 2:
            digest_of(one)
        other.step()
        one.zero_grad()
        other.zero_grad()
    return digest_of(first, second, one, other)


def half_precision_with_momentum():
    torch.manual_seed(0)
    run, model, optimizer, loader = prepared(
        lambda m: optim.SGD(m.parameters(), 0.1, momentum=0.9), scenarios.mlp().bfloat16()
    )
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0].bfloat16()).float(), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model, optimizer)


def random_numbers_in_a_hook():
    """A hook of the script draws before the engine, the same on every rank."""

    def add_noise(optimizer, *_):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.add_(1e-3 * torch.randn_like(parameter))

    def make(model):
        optimizer = adamw(model)
        optimizer.register_step_pre_hook(add_noise)
        return optimizer

    return looking(lambda *_: None, make=make)


def a_group_that_comes_later():
    run, model, optimizer, loader = prepared(lambda model: adamw(model[1]))
    for step in run.steps(loader):
        one_step(step, model, optimizer)
        if step.number == 2:
            optimizer.add_param_group({"params": [*model[3].parameters()], "lr": 0.01})
    return digest_of(model, optimizer)


def parameters_of_another_kind():
    """The script gives a weight other memory; what it had is kept."""

    def move(run, model, optimizer):
        model[1].weight.data = model[1].weight.data.clone()

    return looking(move)


def weights_written_every_step():
    run, model, optimizer, loader = prepared(adamw)
    names = []
    for _ in run.epochs(2):
        for step in run.steps(loader):
            one_step(step, model, optimizer)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.1, 0.1)
            names.append(strategy())
    return digest_of(model, optimizer), names[-1] != "zero1"


def views_of_parameters():
    """A view that was taken before `run.prepare` goes on showing the weight."""
    model = scenarios.mlp()
    view = model[1].weight.data
    run, model, optimizer, loader = prepared(adamw, model)
    for step in run.steps(loader):
        one_step(step, model, optimizer)
    return digest_of(model, view)


def view_taken_in_the_middle():
    views = []

    def look(run, model, optimizer):
        views.append(model[1].weight.data)
        return len(optimizer.state)

    return looking(look), digest_of(*views)


class ReadsTheModel(torch.utils.data.Dataset):
    """Samples that depend on a weight, as a loader worker sees it: that of when the worker was forked."""

    def __init__(self, model):
        self.model, self.inner = model, scenarios.digits(96)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, label = self.inner[index]
        return image + self.model[1].weight.detach().sum(), label


def workers_that_read_the_model():
    run = lockstep.init(seed=0, lanes=4)
    model = scenarios.mlp()
    optimizer = adamw(model)
    loader = DataLoader(ReadsTheModel(model), batch_size=8, num_workers=1, prefetch_factor=1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.epochs(2):
        for step in run.steps(loader):
            one_step(step, model, optimizer)
    return digest_of(model, optimizer)


def sparse_gradients_that_come_later():
    """SGD takes sparse gradients where it has no momentum; then they are sparse on any number of ranks."""
    run = lockstep.init(seed=3, lanes=4)
    model = embeddings.sparse_model()
    model["small"].requires_grad_(False)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(scenarios.digits(), batch_size=32, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    layouts, names = [], []
    for step in run.steps(loader):
        for images, labels in step:
            hidden = model["large"](embeddings.words_of(images)) + model["small"](labels)
            run.backward(F.cross_entropy(model["head"](hidden), labels))
        layouts.append(str(model["large"].weight.grad.layout))
        optimizer.step()
        optimizer.zero_grad()
        names.append(strategy())
        if step.number == 2:
            optimizer.param_groups[0]["momentum"] = 0.0
            model["small"].requires_grad_(True)
    return digest_of(model, optimizer), layouts, names[-1] == "zero1"


def looking_after_the_end():
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        one_step(step, model, optimizer)
    lockstep.finish()
    found = digest_of(optimizer)
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    return found, digest_of(model, optimizer)


def a_second_run_of_the_same():
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        one_step(step, model, optimizer)
    run = lockstep.init(seed=1, lanes=4)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(scenarios.digits(96), batch_size=32))
    for step in run.steps(loader):
        one_step(step, model, optimizer)
    return digest_of(model, optimizer)


SCRIPTS = [
    state_on_one_rank, state_on_one_rank_after_the_first_update, state_in_a_lane, state_of_one_parameter,
    state_that_is_written_to, state_that_is_kept, state_taken_out, state_counted, a_copied_optimizer, a_pickled_optimizer,
    a_state_loaded_twice, an_optimizer_that_had_made_updates, a_closure, an_unknown_optimizer_besides,
    two_models_prepared_apart, half_precision_with_momentum, random_numbers_in_a_hook,
    a_group_that_comes_later, parameters_of_another_kind, weights_written_every_step, views_of_parameters,
    view_taken_in_the_middle, looking_after_the_end, a_second_run_of_the_same,
    workers_that_read_the_model, a_state_that_was_there_and_is_seen_before_the_first_update,
    a_closure_at_the_first_update, everything_loaded_again_at_every_step, a_scheduler_made_before_prepare,
    sparse_gradients_that_come_later,
]  # fmt: skip


def chosen(folder):
    """Which strategy an ordinary script has, and what its optimizer's state is: until it looks, and after that."""
    run, model, optimizer, loader = prepared(adamw)
    told = []
    for step in run.steps(loader):
        told.append((strategy(), type(optimizer.state) is ShownState))
        if step.number == 3:
            optimizer.state_dict()
            told.append((strategy(), type(optimizer.state) is SeenState))
        one_step(step, model, optimizer)
    told.append((strategy(), type(optimizer.state) is SeenState))
    return told


def saved_and_loaded(folder):
    """Saving and loading by the run keeps updates divided."""
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        one_step(step, model, optimizer)
    run.save_state(folder)
    told = [strategy()]
    run, model, optimizer, loader = prepared(adamw)
    run.load_state(folder)
    for step in run.steps(loader):
        one_step(step, model, optimizer)
        told.append(strategy())
    run.save_state(folder)
    return told, digest_of(model)
