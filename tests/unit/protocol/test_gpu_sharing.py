"""How many ranks may share a GPU, as the variable says."""

import pytest

from samebits.errors import UsageError
from samebits.protocol.late_settings import MOST, how_to_share, index_of, ranks_per_gpu


def test_ranks_share_only_where_the_variable_says_so():
    assert [ranks_per_gpu({"SAMEBITS_SHARE_GPU": text}) for text in ("", "1", "4", "64")] == [1, 1, 4, MOST]
    assert ranks_per_gpu({}) == 1


@pytest.mark.parametrize("text", ["0", "-1", "65", "four", "4 ", "2.0", "\u0664", "9" * 5000])
def test_a_number_that_cannot_be_is_one_sentence(text):
    with pytest.raises(
        UsageError, match=r"SAMEBITS_SHARE_GPU must be a number of ranks from 1 to 64, but is .* Set it to 4\."
    ):
        ranks_per_gpu({"SAMEBITS_SHARE_GPU": text})


def test_ranks_are_dealt_to_gpus_in_turn():
    assert [index_of(rank, 2) for rank in range(5)] == [0, 1, 0, 1, 0]
    assert how_to_share(5, 2).startswith("SAMEBITS_SHARE_GPU=3 lets ranks share them")
    assert how_to_share(4, 1).startswith("SAMEBITS_SHARE_GPU=4 lets ranks share it")
