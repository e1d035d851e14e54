"""Ranks, devices and threads: what is decided, and why."""

from __future__ import annotations

import pytest

from samebits.errors import UsageError
from samebits.launcher.sizing import Machine, Size, Wish, size
from samebits.machine.cores import Cores
from tests.support.promises import promise

LAPTOP = Machine(Cores(12, "affinity"), gpus=0)
SERVER = Machine(Cores(64, "affinity"), gpus=8)


def test_two_ranks_share_twelve_cores() -> None:
    assert size(Wish("2"), LAPTOP) == Size(2, "cpu", 6, "12 cores by affinity", cores=12)


@promise(
    "bad-input-and-what-a-person-is-told",
    "Far more threads than cores are reported; too low a limit of open files is one sentence; the name of "
    "a run is never taken twice",
    also=[
        "test_ranks_that_need_more_open_files_than_there_may_be_are_refused_with_the_way_out",
        "test_a_run_folder_is_named_by_time_and_script_and_never_taken_twice",
    ],
)
def test_far_more_threads_than_cores_are_said() -> None:
    said = "8 ranks x 4 threads on 12 cores wait for each other at every step; -n 3 is probably faster"
    assert size(Wish("8", threads=4), LAPTOP).crowded == said
    assert "--threads 6 is probably" in size(Wish("2", threads=64), LAPTOP).crowded
    assert "-n 12 is probably" in size(Wish("25"), LAPTOP).crowded
    assert not size(Wish("24"), LAPTOP).crowded
    assert not size(Wish("2", threads=12), LAPTOP).crowded


def test_auto_is_one_rank_per_gpu() -> None:
    decided = size(Wish(), SERVER)
    assert (decided.ranks, decided.device, decided.threads) == (8, "cuda", 8)


def test_auto_without_a_gpu_is_one_rank_per_core_up_to_four_and_up_to_the_lanes() -> None:
    assert size(Wish(), LAPTOP).ranks == 4
    assert size(Wish(lanes=3), LAPTOP).ranks == 3
    assert size(Wish(), Machine(Cores(1, "affinity"), 0)) == Size(
        1, "cpu", 1, "1 core by affinity; -n auto: one rank per core, at most 4", cores=1
    )


def test_torchruns_words_for_a_number_of_ranks() -> None:
    assert size(Wish("cpu"), SERVER).ranks == 64
    assert size(Wish("cpu"), SERVER).device == "cpu"
    assert size(Wish("gpu"), SERVER).ranks == 8


def test_an_option_beats_a_variable_and_a_variable_beats_the_default() -> None:
    machine = Machine(Cores(12, "affinity"), 0, omp_threads="5")
    assert size(Wish("2", threads=3), machine).threads == 3
    assert size(Wish("2"), machine) == Size(2, "cpu", 5, "12 cores by affinity, threads by OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("wish", "machine", "sentence"),
    [
        (Wish("0"), LAPTOP, "-n must be at least 1, but is 0. Start with -n 1, or -n auto."),
        (Wish("-3"), LAPTOP, "-n must be at least 1, but is -3. Start with -n 1, or -n auto."),
        (Wish("two"), LAPTOP, "-n must be a number of ranks or `auto`, but is 'two'. Start with -n 2."),
        (Wish("2", threads=0), LAPTOP, "--threads must be at least 1, but is 0. Leave it out to let samebits choose."),
        (Wish("2", lanes=0), LAPTOP, "`lanes` must be at least 1, but is 0. Leave it out to let samebits choose."),
        (
            Wish("4", lanes=2),
            LAPTOP,
            "`lanes` must be at least the number of ranks, but is 2 with 4 ranks. Start with -n 2, or set lanes=4.",
        ),
        (
            Wish("9", device="cuda"),
            SERVER,
            (
                "9 ranks need 9 GPUs, but there are 8 here. "
                "Use at most 8 ranks, or --device cpu. SAMEBITS_SHARE_GPU=2 lets ranks share them, for tests and proofs."
            ),
        ),
        (
            Wish("1", device="cuda"),
            LAPTOP,
            "No GPU that the installed torch can use was found here. Start with --device cpu.",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence_with_the_way_out(wish: Wish, machine: Machine, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        size(wish, machine)
    assert str(refused.value) == sentence


def test_ranks_share_gpus_only_as_far_as_they_may_and_where_there_are_too_few() -> None:
    one = Machine(Cores(16, "affinity"), gpus=1, ranks_per_gpu=4)
    assert (size(Wish("4"), one).device, size(Wish("4"), one).shared_gpus) == ("cuda", 1)
    assert size(Wish("1"), one).shared_gpus == 0
    assert size(Wish(), one).ranks == 1, "auto stays one rank per GPU"
    with pytest.raises(
        UsageError, match=r"Use at most 1 rank, or --device cpu\. SAMEBITS_SHARE_GPU=5 lets ranks share it"
    ):
        size(Wish("5"), one)
    eight = Machine(Cores(64, "affinity"), gpus=8, ranks_per_gpu=2)
    assert (size(Wish("8"), eight).shared_gpus, size(Wish("16"), eight).shared_gpus) == (0, 8)


def test_more_ranks_than_a_node_can_have_are_refused_before_anything_is_made():
    with pytest.raises(
        UsageError, match=r"100000 ranks are too many: one node takes at most 1024\. Start with -n auto\."
    ):
        size(Wish("100000"), Machine(Cores(96, "affinity"), gpus=0))
    with pytest.raises(UsageError, match=r"1000 ranks are too many: 12 cores take at most 768\. Start with -n auto\."):
        size(Wish("1000"), LAPTOP)
    assert size(Wish("768"), LAPTOP).ranks == 768


def test_ranks_that_need_more_open_files_than_there_may_be_are_refused_with_the_way_out():
    machine = Machine(Cores(2, "affinity"), 0, open_files=16)
    with pytest.raises(
        UsageError, match=r"2 ranks need 24 open files, but a process may have 16 here\. .*ulimit -n 1024"
    ):
        size(Wish("2"), machine)
    assert size(Wish("2"), Machine(Cores(2, "affinity"), 0, open_files=24)).ranks == 2
    assert size(Wish("128"), Machine(Cores(2, "affinity"), 0, open_files=-1)).ranks == 128
