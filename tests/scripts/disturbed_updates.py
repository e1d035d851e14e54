"""Updates that are interrupted, raise, or are looked at from the side: by default they leave what they leave on one rank.

Each returns what it saw, as in `looking_scripts`.
"""

import contextlib
import copy
import hashlib
import io
import signal
import threading

import torch
import torch.nn.functional as F
from torch.optim import adam

import lockstep
from lockstep.testing.digests import digest_of
from tests.scripts.looking_scripts import looking
from tests.scripts.zero1_scripts import adamw, prepared


@contextlib.contextmanager
def in_the_engine(inner):
    """Call `inner` where AdamW has its lists and its state, before it changes a number."""
    real = adam.adam

    def instead(*args, **kwargs):
        inner()
        return real(*args, **kwargs)

    adam.adam = instead
    try:
        yield
    finally:
        adam.adam = real


def interrupt():
    raise KeyboardInterrupt


def an_interrupt_in_an_update():
    """The script saves what there is, and ends."""
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        if step.number == 3:
            with in_the_engine(interrupt), contextlib.suppress(KeyboardInterrupt):
                optimizer.step()
            break
        optimizer.step()
        optimizer.zero_grad()
    state = optimizer.state_dict()
    return digest_of(model, optimizer), [entry["exp_avg"].shape for entry in state["state"].values()]


def an_interrupt_in_the_first_update():
    """Nobody has a whole state yet."""
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        with in_the_engine(interrupt), contextlib.suppress(KeyboardInterrupt):
            optimizer.step()
        break
    shapes = [parameter.shape for parameter in model.parameters()]
    found = optimizer.state_dict()["state"]
    return digest_of(model), all(entry["exp_avg"].shape == shapes[number] for number, entry in found.items())


def an_interrupt_after_a_state_was_loaded():
    """What was loaded is still there: the shares of an earlier state are not it."""
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        if step.number == 3:
            state = copy.deepcopy(optimizer.state_dict())
            for entry in state["state"].values():
                entry["exp_avg"].fill_(2.0)
            optimizer.load_state_dict(state)
            del state, entry
            with in_the_engine(interrupt), contextlib.suppress(KeyboardInterrupt):
                optimizer.step()
            break
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model, optimizer)


def an_update_that_raises_and_is_made_again():
    found = []
    for looks in (False, True):
        run, model, optimizer, loader = prepared(adamw)
        for step in run.steps(loader):
            step.backward(lambda batch, model=model: F.cross_entropy(model(batch[0]), batch[1]))
            if step.number == 2:
                with in_the_engine(interrupt), contextlib.suppress(KeyboardInterrupt):
                    optimizer.step()
                found.append(digest_of(optimizer) if looks else "")
            optimizer.step()
            optimizer.zero_grad()
        found.append(digest_of(model, optimizer))
        lockstep.finish()
    return found


def a_signal_in_an_update_whose_handler_saves():
    """It sees whole parameters; of the values some are old and some new, so they are not compared."""
    run, model, optimizer, loader = prepared(adamw)
    saved = []
    signal.signal(signal.SIGUSR2, lambda *_: saved.append(copy.deepcopy(optimizer.state_dict())))
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        with in_the_engine(lambda: signal.raise_signal(signal.SIGUSR2)):
            optimizer.step()
        optimizer.zero_grad()
    told = [
        (one["param_groups"], {number: entry["exp_avg"].shape for number, entry in one["state"].items()})
        for one in saved[1:]
    ]
    return digest_of(model, optimizer), told


def a_thread_that_draws_in_an_update():
    """A loader's or a tracker's; the engine itself draws nothing."""

    def draw():
        other = threading.Thread(target=torch.randn, args=(3,))
        other.start()
        other.join()

    with in_the_engine(draw):
        return looking(lambda *_: None)


def a_thread_that_saves_all_the_time():
    """It sees whole parameters, or waits for the end of a step."""
    run, model, optimizer, loader = prepared(adamw)
    sizes, errors, ends = set(), [], threading.Event()

    def save():
        while not ends.is_set():
            try:
                sizes.add(len(optimizer.state_dict()["param_groups"][0]["params"]))
            except Exception as error:
                errors.append(repr(error))

    other = threading.Thread(target=save)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        if step.number == 2:
            other.start()
        optimizer.step()
        optimizer.zero_grad()
    ends.set()
    other.join()
    return digest_of(model, optimizer), sizes, [one for one in errors if "changed size" not in one]


def mistakes_in_an_update():
    """They are torch's own, and name no strategy."""
    run, model, optimizer, loader = prepared(adamw)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.param_groups[0]["lr"] = None
        try:
            optimizer.step()
        except TypeError as error:
            return type(error).__name__, str(error)
    return None


def a_parameter_listed_twice_later():
    def twice(run, model, optimizer):
        optimizer.param_groups[0]["params"].append(model[1].weight)

    def once(run, model, optimizer):
        optimizer.param_groups[0]["params"].pop()

    return looking(twice, after=once)


def bytes_of_a_saved_state():
    def save(run, model, optimizer):
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        return hashlib.sha256(file.getvalue()).hexdigest()

    return looking(save)


SCRIPTS = [
    an_interrupt_in_an_update,
    an_interrupt_in_the_first_update,
    an_interrupt_after_a_state_was_loaded,
    an_update_that_raises_and_is_made_again,
    a_signal_in_an_update_whose_handler_saves,
    a_thread_that_draws_in_an_update,
    a_thread_that_saves_all_the_time,
    mistakes_in_an_update,
    a_parameter_listed_twice_later,
    bytes_of_a_saved_state,
]
