"""What only a GPU can show. Skipped where there is none."""

import pytest
import scenarios_on_gpu
import torch

from samebits.rank.data.device_copies import CopyStream
from samebits.testing.ranks import Started, run_ranks

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
    with pytest.raises(AssertionError, match=f"{ranks} ranks need one GPU each"):
        run_ranks(scenarios_on_gpu.train, Started(ranks, lanes=ranks, device="cuda"))


@pytest.mark.parametrize("precision", ["32", "bf16-mixed", "16-mixed"])
def test_copies_on_their_own_stream_change_no_bit(precision):
    alone = run_ranks(scenarios_on_gpu.train_as, Started(1, lanes=4, device="cuda"), precision, 0)
    assert run_ranks(scenarios_on_gpu.train_as, Started(1, lanes=4, device="cuda"), precision, 2) == alone


def test_a_batch_that_is_used_twice_is_copied_once_and_stays():
    once = run_ranks(scenarios_on_gpu.train_as, Started(1, lanes=4, device="cuda"), "32", 2, 2)
    assert run_ranks(scenarios_on_gpu.train_as, Started(1, lanes=4, device="cuda"), "32", 0, 2) == once


def test_the_copying_stream_is_not_the_compute_stream_and_memory_is_held_for_it():
    device = torch.device("cuda", torch.cuda.current_device())
    copies = CopyStream(device)
    work = torch.randn(2048, 2048, device=device)
    batches = [torch.full((1 << 20,), float(number)).pin_memory() for number in range(8)]
    sums = []
    for batch in batches:
        work = work @ work / 2048  # keeps the compute stream busy while copies go on
        moved = copies.hand_over(copies.begin(batch))
        sums.append(moved.sum())
        del moved  # its memory may be taken by the next copy only after the sum
    assert [float(value) for value in sums] == [float(number << 20) for number in range(8)]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
def test_synchronised_norm_works_with_one_lane_per_rank():
    first, second = run_ranks(scenarios_on_gpu.synchronised_norm, Started(2, lanes=2, device="cuda"))
    assert first == second


@pytest.mark.parametrize(("kind", "loads"), [("Adagrad", False), ("Adam", True)])
def test_state_that_an_optimizer_had_before_moves_with_the_model(kind, loads):
    first = run_ranks(scenarios_on_gpu.state_before_prepare, Started(1, lanes=2, device="cuda"), kind, loads)
    assert run_ranks(scenarios_on_gpu.state_before_prepare, Started(1, lanes=2, device="cuda"), kind, loads) == first


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
def test_a_rank_without_samples_gathers_with_the_others():
    told = run_ranks(scenarios_on_gpu.gathered_from_few, Started(2, lanes=2, device="cuda"))
    assert sorted(told) == [(0, (1, 1), "cuda"), (1, (1, 1), "cuda")]


def test_a_data_set_on_the_gpu_trains_as_one_of_the_host():
    gpu = Started(1, lanes=4, device="cuda")
    assert run_ranks(scenarios_on_gpu.data_on, gpu, "cuda") == run_ranks(scenarios_on_gpu.data_on, gpu, "cpu")
