"""`zero1`: each rank updates its share; bits, meaning and mistakes are those of one rank."""

import pytest
import zero1_scripts

from lockstep.layout.mesh import Form
from lockstep.testing.ranks import RankFailed, Started, run_ranks

pytestmark = pytest.mark.ranks
ZERO1 = Form("zero1")


@pytest.mark.parametrize("script", zero1_scripts.SCRIPTS, ids=lambda script: script.__name__)
def test_a_script_has_the_bits_of_one_rank(script):
    [alone] = run_ranks(script, Started(1))
    for ranks in (2, 3):
        for result in run_ranks(script, Started(ranks, form=ZERO1)):
            assert result == alone, f"{ranks} ranks"


@pytest.mark.parametrize("mistake", zero1_scripts.MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_one_sentence_on_every_rank(mistake):
    with pytest.raises(RankFailed) as caught:
        run_ranks(mistake, Started(2, form=ZERO1, timeout_s=30))
    assert caught.value.error_type == "UsageError"
    assert zero1_scripts.MISTAKES[mistake] in caught.value.message


def test_autograd_sees_the_update_of_other_ranks():
    assert run_ranks(zero1_scripts.graph_from_before, Started(3, form=ZERO1)) == [True] * 3


def test_each_rank_keeps_its_share_of_the_state():
    told = run_ranks(zero1_scripts.shares_of_state, Started(3, form=ZERO1))
    [total] = {total for _, total, _ in told}
    assert sum(kept for kept, _, _ in told) == total
    assert max(kept for kept, _, _ in told) <= total / 3 + 1024
    assert {entries for _, _, entries in told} == {10}


def test_an_unused_parameter_is_not_updated_and_gets_no_state():
    assert run_ranks(zero1_scripts.never_used, Started(2, form=ZERO1)) == [[0, 1], [0, 1]]
