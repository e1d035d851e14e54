"""The strongest test: everything that a script may do gives the same bits on 1, 2, 3 and 4 ranks."""

import corner_cases
import pytest
import scenarios

from lockstep.testing.ranks import Started, run_ranks

pytestmark = pytest.mark.ranks

SCENARIOS = [
    value
    for module in (scenarios, corner_cases)
    for name, value in vars(module).items()
    if callable(value)
    and getattr(value, "__module__", "") == module.__name__
    and not isinstance(value, type)
    and name not in ("closures", "digits", "mlp", "train")
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_bits_do_not_depend_on_the_number_of_ranks(scenario):
    [alone] = run_ranks(scenario, Started(1))
    for ranks in (2, 3, 4):
        for result in run_ranks(scenario, Started(ranks)):
            assert result == alone, f"{ranks} ranks"
