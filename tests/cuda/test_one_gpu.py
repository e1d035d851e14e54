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


def test_a_run_on_a_gpu_goes_on_with_the_same_bits(tmp_path):
    gpu = Started(1, lanes=4, device="cuda")
    [whole] = run_ranks(scenarios_on_gpu.resumed, gpu, str(tmp_path / "whole"), 2)
    [first] = run_ranks(scenarios_on_gpu.resumed, gpu, str(tmp_path / "state"), 1)
    [second] = run_ranks(scenarios_on_gpu.resumed, gpu, str(tmp_path / "state"), 2)
    assert (whole[1], first[1], second[1]) == ([0, 1], [0], [1])
    assert second[0] == whole[0]
    assert second[2] == first[3]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
def test_two_gpus_have_the_bits_of_one():
    [alone] = run_ranks(scenarios_on_gpu.train, Started(1, lanes=4, device="cuda"))
    assert run_ranks(scenarios_on_gpu.train, Started(2, lanes=4, device="cuda")) == [alone] * 2


def test_more_ranks_than_gpus_is_one_sentence():
    ranks = torch.cuda.device_count() + 1
    with pytest.raises(AssertionError, match=f"{ranks} ranks need a GPU each"):
        run_ranks(scenarios_on_gpu.train, Started(ranks, lanes=ranks, device="cuda"))
