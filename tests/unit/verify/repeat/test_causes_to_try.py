"""Which cause is tried next where two runs of a script differ."""

import pytest

from samebits.verify.evidence import ItemAtStep
from samebits.verify.repeat.causes import (
    DETERMINISTIC,
    GENERATORS,
    HASHES,
    MOST_TRIES,
    SEED,
    THREADS,
    WORKERS,
    Conditions,
    next_cause,
    seeds_of,
)


def tries(place, **conditions):
    tried = []
    while (cause := next_cause(place, tried, Conditions(**conditions))) is not None:
        tried.append(cause)
    return [cause.name for cause in tried]


@pytest.mark.parametrize(
    ("place", "has_gpu", "among"),
    [
        (ItemAtStep(1, "initial Net.weight"), False, HASHES),
        (ItemAtStep(1, "gradient Net.weight"), False, GENERATORS),
        (ItemAtStep(9, "gradient Net.weight"), False, THREADS),
        (ItemAtStep(9, "gradient Net.weight"), True, DETERMINISTIC),
    ],
)
def test_it_depends_on_where_two_runs_part(place, has_gpu, among):
    causes = tries(place, has_gpu=has_gpu)
    assert causes[0] == SEED.name
    assert among.name in causes
    assert len(causes) == len(set(causes)) <= MOST_TRIES, "two runs each: six at most"


def test_what_a_run_has_not_is_no_cause():
    late = ItemAtStep(9, "gradient Net.weight")
    both = {WORKERS.name, THREADS.name}
    assert both <= {*tries(late)}
    assert not both & {*tries(late, has_workers=False, threads=1)}
    assert HASHES.name in tries(late, has_workers=False, threads=1)


def test_a_seed_for_few_generators_comes_before_one_for_all():
    few, every = seeds_of({"torch": "1", "random": "2"}, {"torch": "1", "random": "3"})
    assert few.fixes == ("random",)
    assert "random.seed(0)" in few.advice
    assert "torch" not in few.advice
    assert every is SEED
    assert seeds_of({"torch": "1"}, {"torch": "1"}) == (SEED,)
    tried = [few]
    assert next_cause(ItemAtStep(1, "initial a"), tried, Conditions(seeds=(few, every))) is SEED
