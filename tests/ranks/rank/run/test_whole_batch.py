"""A loss over the whole batch is that of one device, and has the same bits on any number of ranks."""

import pytest
import torch

from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import whole_batches
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


@promise(
    "same-bits",
    "A loss over the whole batch (`over_batch=`), and losses divided by counts of the whole batch "
    "(`counts=`), are those of one device, to rounding, with the same bits on any number of ranks",
    also=[
        "test_two_losses_with_two_counts_are_those_of_one_device",
        "test_counts_out_of_the_forward_are_those_of_one_device",
        "test_bits_with_counts_out_of_the_forward_do_not_depend_on_the_ranks",
        "test_a_kill_behind_the_look_leaves_the_bits",
    ],
)
def test_a_contrastive_loss_is_that_of_one_device():
    [(losses, values)] = run_ranks(whole_batches.plain, Started(1))
    [one_lane] = run_ranks(whole_batches.train, Started(1), 1)
    assert [float.fromhex(loss) for loss in one_lane["losses"]] == losses
    assert one_lane["values"] == values
    for ranks in (1, 3):
        for result in run_ranks(whole_batches.train, Started(ranks), 4):
            assert [float.fromhex(loss) for loss in result["losses"]] == pytest.approx(losses, rel=1e-5)
            for ours, theirs in zip(result["values"], values, strict=True):
                torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        *(
            pytest.param(one, marks=pytest.mark.thorough)
            for one in (
                *({"precision": "bf16-mixed"}, {"norm": True, "drops": True}),
                *({"precision": "16-mixed"}, {"lanes": 3}),
            )
        ),
    ],
    ids=str,
)
def test_its_bits_do_not_depend_on_the_ranks(options):
    [alone] = run_ranks(_told, Started(1), options)
    for started in (Started(2), Started(3), Started(2, form=Form("zero1"))):
        for result in run_ranks(_told, started, options):
            assert result == alone, started


def _told(options):
    result = whole_batches.train(**options)
    return {key: value for key, value in result.items() if key != "values"}


def test_it_adds_up_with_losses_of_lanes():
    [alone] = run_ranks(whole_batches.with_other_losses, Started(1))
    for result in run_ranks(whole_batches.with_other_losses, Started(2)):
        assert result == alone


def test_lanes_without_a_gradient_count_nothing():
    [alone] = run_ranks(whole_batches.partly_without_gradient, Started(1))
    assert run_ranks(whole_batches.partly_without_gradient, Started(3)) == [alone] * 3


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("a number", "but it returned float"),
        ("a scalar", "but it returned a tensor of shape"),
        ("no scalar", "needs a scalar loss"),
        ("other shapes", "same structure, shape and dtype in every lane"),
    ],
)
def test_what_cannot_be_gathered_is_one_sentence(what, sentence):
    with pytest.raises(RankFailed, match=sentence) as failed:
        run_ranks(whole_batches.wrong, Started(2), what)
    assert failed.value.error_type == "UsageError"


@pytest.mark.parametrize("strategy", ["model_parallel", "hogwild"])
def test_where_a_rank_has_not_the_whole_batch_or_model_it_is_one_sentence(strategy):
    with pytest.raises(RankFailed, match="needs the whole model and all lanes"):
        run_ranks(whole_batches.wrong, Started(2, form=Form(strategy)), "")
