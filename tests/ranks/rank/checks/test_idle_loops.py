"""Loops that train nothing, or add to old gradients, are told once on rank 0, and refused nowhere."""

import contextlib
import io

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import samebits
from samebits.rank.checks.idle_loops import IN_EVAL_MODE, NO_BACKWARD, NO_GRADIENT, NO_STEP, NOT_ZEROED
from samebits.testing.ranks import Started, run_ranks
from tests.scripts.scenarios import digits, mlp
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def heard(leaves_out, zeroes=None, strategy="ddp", lanes=4, ends_early=False):
    """What this rank printed; `leaves_out` of "backward", "step", "zero"; `zeroes(model, optimizer)` in place of zero_grad."""
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        run = samebits.init(seed=1, lanes=lanes, strategy=strategy)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(130), 32, shuffle=True))
        for _ in run.epochs(2):
            for step in run.steps(loader):
                for images, labels in step:
                    loss = F.cross_entropy(model(images), labels)
                    if "backward" not in leaves_out:
                        run.backward(loss)
                if "step" not in leaves_out:
                    optimizer.step()
                if "zero" not in leaves_out:
                    (zeroes or _zero)(model, optimizer)
                if ends_early and step.index == 1:
                    break
        samebits.finish()
    return printed.getvalue()


def _zero(model, optimizer):
    optimizer.zero_grad()


def _to_zeros(model, optimizer):
    optimizer.zero_grad(set_to_none=False)


def _of_model(model, optimizer):
    model.zero_grad()


def _by_hand(model, optimizer):
    for parameter in model.parameters():
        parameter.grad.zero_()


def counts(texts):
    """How often each sentence was said, over all ranks."""
    return [sum(text.count(sentence) for text in texts) for sentence in (NO_BACKWARD, NO_STEP, NOT_ZEROED)]


@promise(
    "samples",
    "Loops without `run.backward`, `optimizer.step()` or `zero_grad()`, or whose loss reaches no "
    "parameter, are reported once",
    also=["test_a_loss_that_reaches_no_parameter_is_told_once"],
)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("leaves_out", "expected"),
    [
        ("", [0, 0, 0]),
        ("backward step zero", [1, 0, 0]),
        ("backward", [1, 0, 0]),
        ("step", [0, 1, 0]),
        ("step zero", [0, 1, 0]),
        ("zero", [0, 0, 1]),
    ],
)
def test_what_a_loop_leaves_out_is_said_once(leaves_out, expected, ranks):
    assert counts(run_ranks(heard, Started(ranks), leaves_out)) == expected


def test_a_loop_that_is_left_early_is_told_too():
    assert counts(run_ranks(heard, Started(1), "step", None, "ddp", 4, True)) == [0, 1, 0]


@pytest.mark.parametrize("zeroes", [_to_zeros, _of_model, _by_hand])
@pytest.mark.parametrize(("strategy", "lanes"), [("ddp", 4), ("ddp", 1), ("zero1", 4)])
def test_gradients_that_are_reset_in_another_way_are_not_told(zeroes, strategy, lanes):
    ranks = 1 if lanes == 1 else 2
    assert counts(run_ranks(heard, Started(ranks), "", zeroes, strategy, lanes)) == [0, 0, 0]


@pytest.mark.parametrize(("strategy", "lanes"), [("ddp", 1), ("zero1", 4)])
def test_they_are_told_in_other_layouts_too(strategy, lanes):
    ranks = 1 if lanes == 1 else 2
    assert counts(run_ranks(heard, Started(ranks), "zero", None, strategy, lanes)) == [0, 0, 1]


def accumulates_and_alternates():
    """Legal: updates every second step; and two optimizers with a pass each, one of which is zeroed late."""
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        run = samebits.init(seed=1, lanes=4)
        models = [mlp(), mlp()]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        *_, loader = run.prepare(*models, *optimizers, DataLoader(digits(130), 16, shuffle=True))
        for step in run.steps(loader):
            if step.index % 2:
                optimizers[0].zero_grad()
            for images, labels in step:
                run.backward(F.cross_entropy(models[0](images), labels))
            if step.index % 2 == 0:
                optimizers[0].step()
            for images, labels in step:
                run.backward(F.cross_entropy(models[0](images) + models[1](images), labels))
            optimizers[1].step()
            optimizers[1].zero_grad()
        samebits.finish()
    return printed.getvalue()


def test_accumulation_and_two_optimizers_are_not_told():
    assert counts(run_ranks(accumulates_and_alternates, Started(1))) == [0, 0, 0]


def of_loss(loss_of, strategy="ddp"):
    """What this rank printed in a loop that calls backward on `loss_of(outputs, labels)`."""
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        run = samebits.init(seed=1, lanes=4, strategy=strategy)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(130), 32, shuffle=True))
        for _ in run.epochs(2):
            for step in run.steps(loader):
                step.backward(lambda batch: loss_of(model(batch[0]), batch[1]))
                optimizer.step()
                optimizer.zero_grad()
        samebits.finish()
    return printed.getvalue()


def _of_nothing(outputs, labels):
    return F.cross_entropy(outputs, labels).detach().requires_grad_()


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 1), ("ddp", 2), ("zero1", 2)])
def test_a_loss_that_reaches_no_parameter_is_told_once(ranks, strategy):
    assert sum(text.count(NO_GRADIENT) for text in run_ranks(of_loss, Started(ranks), _of_nothing, strategy)) == 1


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "pipeline", "dp", "hogwild"])
def test_one_that_does_is_not_told_whatever_the_strategy(strategy):
    assert NO_GRADIENT not in "".join(run_ranks(of_loss, Started(2 - (strategy == "dp")), F.cross_entropy, strategy))


def told(batch_size, lanes, in_eval=False, samples=19, trains_a_part=False):
    """What a loop says over so small batches, or in eval mode."""
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        run = samebits.init(seed=1, lanes=lanes)
        model = torch.nn.Sequential(mlp(), torch.nn.Dropout(0.1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(samples), batch_size))
        model.train(not in_eval)
        model[1].train(trains_a_part or not in_eval)
        for _ in run.epochs(2):
            for step in run.steps(loader):
                for images, labels in step:
                    run.backward(F.cross_entropy(model(images), labels))
                optimizer.step()
                optimizer.zero_grad()
        samebits.finish()
    return printed.getvalue()


@pytest.mark.parametrize("ranks", [1, 2])
def test_lanes_that_stay_empty_are_told_once_with_the_line(ranks):
    first, *others = run_ranks(told, Started(ranks), 2, 4)
    [line] = [one for one in first.splitlines() if "empty" in one]
    assert line.startswith("samebits: test_idle_loops.py:")
    assert "a step has 2 samples for 4 lanes, so 2 stay empty" in line
    assert line.endswith("Make it larger, or set lanes=2.")
    assert not any("empty" in one for one in others)
    assert "empty" not in run_ranks(told, Started(1), 8, 4)[0], "the last step of an epoch is short by itself"


@pytest.mark.parametrize("in_eval", [True, False])
def test_training_in_eval_mode_is_told_once_where_it_makes_a_difference(in_eval):
    assert sum(text.count(IN_EVAL_MODE) for text in run_ranks(told, Started(2), 8, 4, in_eval)) == in_eval


def test_a_model_of_which_a_part_trains_is_not_in_eval_mode():
    assert IN_EVAL_MODE not in "".join(run_ranks(told, Started(2), 8, 4, True, 19, True))


def test_a_data_set_that_is_smaller_than_a_batch_is_not_called_a_small_batch():
    assert "empty" not in "".join(run_ranks(told, Started(2), 8, 4, False, 3))
