"""The strongest test: everything that a script may do gives the same bits on 1, 2, 3 and 4 ranks."""

import pytest

from samebits.testing.ranks import Started, run_ranks
from tests.scripts import corner_cases, embeddings, scenarios
from tests.scripts.registration import SCENARIOS
from tests.support.promises import promise

pytestmark = [pytest.mark.ranks, pytest.mark.every_row]
__all__ = ["corner_cases", "embeddings", "scenarios"]  # they register


SLOW = {
    "large_layers",
    "rows_in_several_backwards",
    "activation_checkpointing",
    "word_vectors",
    "hooks_that_fire_twice",
    "tuples_as_indices",
    "augmentation_in_workers",
    "seven_lanes",
}
SCENARIO = [
    pytest.param(one, id=one.__name__, marks=[pytest.mark.thorough] * (one.__name__ in SLOW)) for one in SCENARIOS
]


@promise("samples", "Evaluation sees each sample once, and `run.gather` gives them in data-set order")
@promise(
    "same-bits",
    "Models, optimizers, losses and norms on 1 to 4 ranks, for 37 kinds of scripts: BatchNorm, dropout, "
    "uneven lanes, loader workers, tied and frozen parameters, a GAN, averages, accumulation, halves",
)
@pytest.mark.parametrize("ranks", [3, *(pytest.param(number, marks=pytest.mark.thorough) for number in (2, 4))])
@pytest.mark.parametrize("scenario", SCENARIO)
def test_the_bits_do_not_depend_on_the_number_of_ranks(scenario, ranks):
    """Three ranks carry different numbers of lanes, so `make test` has those."""
    [alone] = run_ranks(scenario, Started(1))
    assert run_ranks(scenario, Started(ranks)) == [alone] * ranks
