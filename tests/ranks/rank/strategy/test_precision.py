"""Mixed precision: the same bits on any number of ranks, overflows skipped on all of them, torch's own rules."""

import pytest

from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import precisions
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


@promise(
    "same-bits",
    "Mixed precision (with overflows, clipping, a GAN, a script's own autocast or GradScaler) has the "
    "same bits on 1, 2 and 4 ranks and in stages; an update that overflowed is skipped on every rank",
    also=["test_a_model_in_stages_has_the_bits_of_one_rank_and_skips_together"],
)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_mixed_precision_has_the_same_bits_on_1_2_and_4_ranks(ranks):
    [alone] = run_ranks(precisions.every_precision, Started(1))
    for result in run_ranks(precisions.every_precision, Started(ranks)):
        assert result == alone
    weights = [alone[name]["model"] for name in ("32", "bf16", "fp16", "overflow")]
    assert len(set(weights)) == 4, "each precision computes something of its own"
    steps = [entry for entry in alone["overflow"]["seen"] if isinstance(entry, tuple)]
    assert [skipped for skipped, _, _ in steps].count(True) == 2, "the batch with the overflow, once in each epoch"
    assert alone["overflow"]["scaler"]["scale"] == 2.0**14
    assert alone["fp16"]["scaler"] == {"scale": 2.0**16, "good_steps": 8, "skipped_in_a_row": 0}
    gan, scaler = alone["gan"]
    assert [skipped for _, _, skipped in gan].count(True) == 1
    assert len({first for first, _, _ in gan}) == 4
    assert scaler["scale"] == 2.0**15


def test_one_lane_under_16_mixed_has_the_bits_of_torchs_own_scaler():
    [[same, theirs, ours]] = run_ranks(precisions.as_torch_does, Started(1))
    assert same
    assert theirs == ours["scale"] == 2.0**15


def test_a_loop_that_is_left_early_leaves_autocast_too():
    for states in run_ranks(precisions.leaving_early, Started(2)):
        assert states == [False, False, False]


FORMS = {"bf16-mixed": [Form("pipeline")], "16-mixed": [Form("model_parallel"), Form("pipeline", schedule="gpipe")]}


@pytest.mark.parametrize("precision", list(FORMS))
@pytest.mark.thorough
def test_a_model_in_stages_has_the_bits_of_one_rank_and_skips_together(precision):
    [(whole, seen, scaler)] = run_ranks(precisions.in_stages, Started(1), precision)
    for form in FORMS[precision]:
        told = run_ranks(precisions.in_stages, Started(2, form=form), precision)
        assert {name: value for held, _, _ in told for name, value in held.items()} == whole
        assert [rest for _, *rest in told] == [[seen, scaler]] * 2
        assert all(0 < len(held) < len(whole) for held, _, _ in told)
    if scaler is not None:
        assert scaler["scale"] == 2.0**15
