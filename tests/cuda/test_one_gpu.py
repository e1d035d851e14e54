"""What only a GPU can show. Skipped where there is none."""

import pytest
import scenarios_on_gpu
import torch

from lockstep.testing.ranks import Started, run_ranks

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]


def test_training_on_a_gpu_is_repeatable_to_the_bit():
    first = run_ranks(scenarios_on_gpu.train, Started(1, lanes=4, device="cuda"))
    assert run_ranks(scenarios_on_gpu.train, Started(1, lanes=4, device="cuda")) == first


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
def test_two_gpus_have_the_bits_of_one():
    [alone] = run_ranks(scenarios_on_gpu.train, Started(1, lanes=4, device="cuda"))
    assert run_ranks(scenarios_on_gpu.train, Started(2, lanes=4, device="cuda")) == [alone] * 2


def test_more_ranks_than_gpus_is_one_sentence():
    ranks = torch.cuda.device_count() + 1
    with pytest.raises(AssertionError, match=f"{ranks} ranks need a GPU each"):
        run_ranks(scenarios_on_gpu.train, Started(ranks, lanes=ranks, device="cuda"))
