"""Which causes are worth a try."""

import pytest

from samebits.verify.evidence import ItemAtStep
from samebits.verify.repeat.causes import DETERMINISTIC, HASHES, MOST_TRIES, SEED, THREADS, worth_a_try


@pytest.mark.parametrize(
    ("place", "has_gpu", "first", "among"),
    [
        (ItemAtStep(1, "initial Net.weight"), False, SEED, HASHES),
        (ItemAtStep(1, "gradient Net.weight"), False, SEED, HASHES),
        (ItemAtStep(9, "gradient Net.weight"), False, SEED, THREADS),
        (ItemAtStep(9, "gradient Net.weight"), True, SEED, DETERMINISTIC),
    ],
)
def test_it_depends_on_where_two_runs_part(place, has_gpu, first, among):
    causes = worth_a_try(place, has_gpu=has_gpu)
    assert causes[0] is first
    assert among in causes
    assert len(causes) <= MOST_TRIES, "two runs each: six at most"
