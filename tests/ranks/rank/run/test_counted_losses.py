"""Losses with a count each (`counts=`) are those of one device with the whole batch, on any number of ranks."""

import pytest
import torch

from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts import counted_losses

pytestmark = pytest.mark.ranks


def test_two_losses_with_two_counts_are_those_of_one_device():
    [(losses, values)] = run_ranks(counted_losses.plain, Started(1))
    assert run_ranks(counted_losses.train, Started(1), 1) == [(losses, values)]
    [alone] = run_ranks(counted_losses.train, Started(1))
    assert alone[0] == pytest.approx(losses, rel=1e-5)
    for ours, theirs in zip(alone[1], values, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lanes", [4, 3])
def test_their_bits_do_not_depend_on_the_ranks(lanes):
    [alone] = run_ranks(counted_losses.train, Started(1), lanes, 0.2)
    for started in (Started(2), Started(3), Started(2, form=Form("zero1"))):
        assert run_ranks(counted_losses.train, started, lanes, 0.2) == [alone] * started.ranks


def test_counts_out_of_the_forward_are_those_of_one_device():
    [(losses, values)] = run_ranks(counted_losses.sampled_plain, Started(1))
    [one_lane] = run_ranks(counted_losses.train_sampled, Started(1), 1)
    [alone] = run_ranks(counted_losses.train_sampled, Started(1))
    for found in (one_lane, alone):
        assert found[0] == pytest.approx(losses, rel=1e-5)
        for ours, theirs in zip(found[1], values, strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [(4, 0.2, True), (3, 0.0, True, 2), pytest.param((4, 0.0, False, 21), marks=pytest.mark.thorough)],
    ids=str,
)
def test_bits_with_counts_out_of_the_forward_do_not_depend_on_the_ranks(options):
    [alone] = run_ranks(counted_losses.train_sampled, Started(1), *options)
    for started in (Started(2), Started(3), Started(2, form=Form("zero1"))):
        assert run_ranks(counted_losses.train_sampled, started, *options) == [alone] * started.ranks


def test_mixed_precision_with_counts_out_of_the_forward_has_the_same_bits_on_any_number_of_ranks():
    [alone] = run_ranks(_sampled_in_16_mixed, Started(1))
    assert run_ranks(_sampled_in_16_mixed, Started(2)) == [alone] * 2


def _sampled_in_16_mixed():
    return counted_losses.train_sampled(precision="16-mixed")


def test_a_model_in_stages_has_the_losses_of_one_rank():
    [alone] = run_ranks(counted_losses.in_stages, Started(1))
    for form in (Form("model_parallel"), Form("pipeline")):
        assert run_ranks(counted_losses.in_stages, Started(2, form=form)) == [alone] * 2


def test_mixed_precision_has_the_same_bits_on_any_number_of_ranks():
    [alone] = run_ranks(_in_16_mixed, Started(1))
    assert run_ranks(_in_16_mixed, Started(2)) == [alone] * 2


def _in_16_mixed():
    return counted_losses.train(precision="16-mixed")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mistake", counted_losses.MISTAKES, ids=lambda mistake: mistake.__name__)
def test_what_is_no_count_is_one_sentence(mistake, ranks):
    with pytest.raises(RankFailed) as caught:
        run_ranks(mistake, Started(ranks, timeout_s=30))
    assert caught.value.error_type == "UsageError"
    assert counted_losses.MISTAKES[mistake] in caught.value.message
