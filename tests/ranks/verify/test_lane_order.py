"""The row `lanes in another order`: what lanes hand on gives other bits backwards, and what is a sum over lanes does not."""

import pytest

from samebits.verify.lane_order import Order, not_tried
from tests.scripts.verifying import Verifier, nursery, verified
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
__all__ = ["nursery", "verified"]

EVERYTHING = """for x, y in step:
            made.append(model(x).detach().sum(0))
            scores.add(mean=float(x.mean()))
            run.backward(F.cross_entropy(model(x), y))
        total, rows = run.lane_sum(made), run.lane_cat(made)
        run.log(total=float(total[0]), last=float(rows[-1]), mean=scores.mean()["mean"])
        step.backward(lambda batch: batch[0] @ model[0].weight.T, over_batch=lambda f: torch.logsumexp(f @ f.T, 1).mean())
        step.backward(lambda batch, total: model(batch[0]).pow(2).sum() / total, counts=lambda batch: len(batch[0]))
        for x, y in step:"""
"""Sums, rows, tallies, a loss over the batch and counts: all that takes something from every lane."""


@pytest.mark.thorough
def test_sums_rows_and_losses_over_the_batch_are_the_same_from_both_ends(verified: Verifier) -> None:
    script = verified.folder / "train.py"
    verified(ranks=(1,), save=verified.folder / "bits.json", lanes=3)
    text = script.read_text().replace("for x, y in step:", EVERYTHING)
    text = text.replace(
        "for step in run.steps(loader):", "for step in run.steps(loader):\n        made, scores = [], run.tally()"
    )
    script.write_text(text)
    result = verified.of(script, (1,), 2, save=verified.folder / "bits.json")
    assert result.failed is None
    assert result.lane_order is not None
    assert result.lane_order.found is Order.SAME, result.lane_order


@promise(
    "what-verify-proves",
    "What lanes hand on gives other bits with the lanes in another order, what takes something from "
    "every lane does not",
    also=["test_sums_rows_and_losses_over_the_batch_are_the_same_from_both_ends"],
)
def test_a_number_that_lanes_hand_on_is_found_with_one_rank(verified: Verifier) -> None:
    result = verified(
        ranks=(1,),
        save=verified.folder / "bits.json",
        before="scale = 1.0",
        lane="factor = scale; scale = 0.5 + float(x.mean())",
        loss="F.cross_entropy(model(x), y) * factor",
    )
    assert result.same_bits
    assert not result.proved
    assert result.exit_code == 1
    assert result.lane_order is not None
    assert result.lane_order.found is Order.DIFFERS
    assert "run.lane_sum" in result.lane_order.sentence


def test_a_script_that_fails_backwards_is_told_so(verified: Verifier) -> None:
    result = verified(
        ranks=(1,), save=verified.folder / "bits.json", before="seen = {}", lane="seen[step.lane] = 0; seen[0]"
    )
    assert result.lane_order is not None
    assert result.lane_order.found is Order.FAILS
    assert "KeyError" in result.lane_order.sentence


def test_one_lane_has_no_other_order(verified: Verifier) -> None:
    result = verified(ranks=(1,), save=verified.folder / "bits.json", lanes=1)
    assert result.lane_order == not_tried("there is one lane")
    assert result.exit_code == 0
