"""A run that is killed at random, and goes on on other ranks under another strategy each time, ends with the same bits."""

import tempfile

import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts.crashing_runs import part_of_a_history

pytestmark = [pytest.mark.ranks, pytest.mark.compiles]
WAYS = [(1, None), (2, "ddp"), (4, "ddp"), (2, "zero1"), (3, "zero1"), (4, "zero1"), (2, "model_parallel")]
"""On how many ranks a run goes on, and how."""
parts = st.lists(st.tuples(st.sampled_from(WAYS), st.integers(0, 4)), min_size=1, max_size=4)
"""Each way, and after how many steps it is killed."""


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return run_ranks(part_of_a_history, Started(1), str(tmp_path_factory.mktemp("straight")), None, None)


def follow(straight, parts, ending):
    with tempfile.TemporaryDirectory() as place:
        made = 0
        for (ranks, strategy), steps in parts:
            made += steps
            if made >= 12:
                break
            with pytest.raises(RankFailed):
                run_ranks(part_of_a_history, Started(ranks), place, strategy, made)
        ranks, strategy = ending
        assert run_ranks(part_of_a_history, Started(ranks), place, strategy, None) == straight * ranks


endings = st.sampled_from(WAYS[:-1])  # where each rank has the whole model


@pytest.mark.thorough
def test_a_run_that_is_killed_and_changes_its_ranks_ends_with_the_same_bits(straight):
    follow(straight, [((4, "zero1"), 5), ((2, "model_parallel"), 4)], (1, None))


@pytest.mark.thorough
@pytest.mark.parametrize("tenth", range(4))
def test_so_do_more_histories(straight, tenth):
    done = []

    @seed(tenth)
    @example([((4, "zero1"), 3), ((2, "model_parallel"), 2), ((1, None), 0), ((2, "ddp"), 4)], (3, "zero1"))
    @settings(max_examples=5, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(parts, endings)
    def histories(parts, ending):
        follow(straight, parts, ending)
        done.append(parts)

    histories()
    print(f"{len(done)} histories, {sum(map(len, done))} kills at most")
