"""A bit that flips in one rank's memory is named within the steps between two checks; nothing else is."""

import pytest
from torch import optim

from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts.damaged import EVERY, strange, train, two_stages
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

WEIGHT, MEAN, TABLE = ("Sequential.2.weight", "Sequential.1.running_mean", "Sequential.table")


def damage(ranks, *flip):
    with pytest.raises(RankFailed) as caught:
        run_ranks(train, Started(ranks), *flip)
    assert caught.value.error_type == "RanksDiffer"
    return caught.value


@promise(
    "never-stuck-nothing-left-behind",
    "A bit that flips in a weight, a buffer or an optimizer's state is named with rank, tensor and "
    "steps (of two ranks both), and all ranks start again from a state of before",
    also=[
        "test_any_bit_at_any_step",
        "test_of_two_ranks_one_is_wrong",
        "test_a_flipped_bit_after_kills_sends_all_ranks_back_to_a_state_that_is_sure",
    ],
)
def test_of_three_ranks_the_majority_names_the_one_with_a_flipped_sign():
    found = damage(3, 1, 9, "weight", 31)
    assert found.rank == 1
    sentence = f"Rank 1 no longer holds the same bits as the other ranks in '{WEIGHT}' (after step"
    assert found.message.startswith(f"{sentence} {2 * EVERY - 1} it did). Memory was damaged, or")
    assert f"step {3 * EVERY} pass 1" not in found.message


def test_of_two_ranks_one_is_wrong():
    found = damage(2, 1, 5, "mean", 0)
    assert found.message.startswith(
        f"Rank 0 and rank 1 no longer hold the same bits in '{MEAN}', so one of the two is wrong (after step 3 they did)."
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "bit", "tensor"),
    [
        ("weight", 0, WEIGHT),
        ("weight", 12, WEIGHT),
        ("weight", 30, WEIGHT),
        ("mean", 31, MEAN),
        ("table", 0, TABLE),
        ("table", 63, TABLE),
        ("first", 22, "exp_avg"),
        ("second", 12, "exp_avg_sq"),  # its lowest bit may be rounded away again before anybody looks
        ("count", 20, "step"),
    ],
)
@pytest.mark.parametrize("number", [EVERY - 1, EVERY, 19, 20])
def test_any_bit_at_any_step(what, bit, tensor, number):
    found = damage(3, 2, number, what, bit)
    assert found.rank == 2
    updated = (f"'{WEIGHT}'", f"'{tensor} of {WEIGHT} in Adam'")  # a wrong state shows in the weight one step later
    assert any(f"the same bits as the other ranks in {one}" in found.message for one in (f"'{tensor}'", *updated))


def test_before_the_end_of_an_epoch_and_of_the_run_ranks_compare_even_if_checks_are_off():
    assert damage(3, 0, 20, "weight", 7, "off").rank == 0


def adam(parameters):
    return optim.AdamW(parameters, lr=0.01)


def momentum(parameters):
    return optim.SGD(parameters, lr=0.01, momentum=0.9)


def closure_free(parameters):
    return optim.Adafactor(parameters)


@promise("never-stuck-nothing-left-behind", "NaNs, signs of zeros and sparse tensors are no damage")
def test_strange_values_are_no_damage():
    assert run_ranks(strange, Started(2), adam, "ddp") == [1, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", [momentum, closure_free], ids=lambda one: one.__name__)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "hogwild"])
def test_strange_values_are_no_damage_under_any_strategy(strategy, optimizer):
    expected = 0 if strategy == "hogwild" else 1
    assert run_ranks(strange, Started(2), optimizer, strategy) == [expected] * 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ranks", "mesh", "every"),
    [(2, "pipeline=2", 0), (4, "pipeline=2,ddp=2", 1), (4, "ddp=2,pipeline=2", 1), (4, "model_parallel=2,ddp=2", 1)],
)
def test_only_replicas_of_a_stage_are_compared(ranks, mesh, every):
    assert run_ranks(two_stages, Started(ranks, form=Form(None, mesh, None))) == [every] * ranks
