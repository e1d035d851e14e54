"""Scenarios of test_same_bits in stages: the same losses and norms to the bit, or a sentence, never a wrong number."""

import pytest

from lockstep.protocol.layout.mesh import Form
from lockstep.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts.in_stages import LOOKS_AT_ABSENT_GRADIENTS, without_digests
from tests.scripts.registration import SCENARIOS

pytestmark = [pytest.mark.ranks, pytest.mark.thorough]

REFUSED = {
    "other_methods": "did not call the model as model",
    "gan": "cuts one model into stages",
    "moving_average": "a copy would have the layers of this rank only",
    "token_weights": "can be cut nowhere",
    "buffers_with_rules": "can be cut nowhere",
    "buffers_and_tensors_that_are_sums": "can be cut nowhere",
    "shared_and_odd_buffers": "cannot be followed without the layers",
    "lanes_without_items": "can be cut nowhere",
    "lbfgs": "does not know whether LBFGS updates each element",
    "sharpness_aware": "does not know whether",
    "sparse_gradients": "did not call the model as model",
    "optimizers_of_sparse_gradients": "did not call the model as model",
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_scenario_in_stages_has_the_bits_of_one_rank_or_is_refused(scenario):
    started = Started(2, form=Form("model_parallel"))
    if scenario.__name__ in REFUSED:
        with pytest.raises(RankFailed, match=REFUSED[scenario.__name__]):
            run_ranks(without_digests, started, scenario)
        return
    [alone] = run_ranks(without_digests, Started(1), scenario)
    for result in run_ranks(without_digests, started, scenario):
        for name in alone.keys() - {LOOKS_AT_ABSENT_GRADIENTS.get(scenario.__name__)}:
            assert result[name] == alone[name], name
