"""What a script's own init_process_group may ask for: each refusal is one sentence, everything that can work works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samebits.errors import UsageError
from samebits.rank.start.guards.meeting_guard import (
    Launched,
    Requested,
    Surroundings,
    Way,
    backend_of_shared_gpus,
    judge_meeting,
    meeting_name,
)
from tests.support.promises import promise

HERE = Surroundings("127.0.0.1:4000")
LAUNCHED = Launched(rank=1, local_rank=1, world_size=2, local_world_size=2, address="127.0.0.1:4000")
ON_GPUS = replace(LAUNCHED, gpus=2)
SECOND_NODE = replace(LAUNCHED, rank=5, local_rank=1, world_size=8, local_world_size=4)


@pytest.mark.parametrize(
    ("asked", "now", "way"),
    [
        (Requested("gloo"), HERE, Way.TORCH),
        (Requested(rank=1, world_size=2), HERE, Way.TORCH),
        (Requested(rank=1), HERE, Way.TORCH),
        (Requested(), replace(HERE, earlier=1), Way.RUN),
        (Requested(rank=1, world_size=2), Surroundings("localhost:12355"), Way.RUN),
        (Requested(), Surroundings(":"), Way.RUN),
        (Requested(init_method="tcp://10.1.1.20:23456", rank=1, world_size=2), HERE, Way.RUN),
        (Requested(init_method="file:///tmp/x", rank=1, world_size=2), HERE, Way.RUN),
        (Requested(init_method="tcp://localhost:23456", rank=0, world_size=1), HERE, Way.RUN),
        (Requested(rank=0, world_size=1), Surroundings("localhost:12355"), Way.RUN),
        (Requested("mine", rank=0, world_size=1, has_store=True), HERE, Way.TORCH),
        (Requested(rank=0, world_size=7, has_store=True), HERE, Way.TORCH),
        (Requested(init_method="mine://there"), HERE, Way.TORCH),
        (Requested(init_method="tcp://h:1", rank=1), HERE, Way.TORCH),
        (Requested(init_method="file:///x"), HERE, Way.TORCH),
        (Requested(init_method="tcp://h:port", rank=1, world_size=2), HERE, Way.TORCH),
    ],
)
def test_what_can_work_works(asked: Requested, now: Surroundings, way: Way) -> None:
    assert judge_meeting(asked, LAUNCHED, now) is way


@promise(
    "never-stuck-nothing-left-behind",
    "A wrong world size or rank, or a missing backend, in `init_process_group` raises one sentence before "
    "anything waits",
)
@pytest.mark.parametrize(
    ("asked", "launched", "sentence"),
    [
        (Requested(world_size=4, rank=1), LAUNCHED, "init_process_group(world_size=4) waits for 4 ranks, but 2 were started. Start 4, or"),
        (Requested(world_size=1), LAUNCHED, "init_process_group(world_size=1) waits for 1 rank, but 2 were started. Start 1, or"),
        (Requested(world_size=4), replace(LAUNCHED, rank=0, world_size=1), "init_process_group(world_size=4) waits for 4 ranks, but 1 was"),
        (Requested(init_method="tcp://h:1", rank=1, world_size=1), LAUNCHED, "init_process_group(world_size=1) waits for 1 rank"),
        (Requested(rank=0), LAUNCHED, "init_process_group(rank=0) was called in rank 1, so the ranks would wait"),
        (Requested(rank=1, world_size=8), SECOND_NODE, "init_process_group(rank=1) got LOCAL_RANK, which is numbered per node; this is rank 5."),
        (Requested("nccl"), replace(LAUNCHED, has_nccl=False), 'This torch has no NCCL. Use init_process_group("gloo").'),
        (Requested("cpu:gloo,cuda:nccl"), replace(LAUNCHED, has_nccl=False), "This torch has no NCCL."),
        (Requested("nccl"), LAUNCHED, "NCCL needs a GPU for each rank, and torch sees none here."),
        (Requested("NCCL"), replace(LAUNCHED, gpus=1), "NCCL needs a GPU for each rank, but 2 ranks were started and torch sees 1. Start 1,"),
    ],
)  # fmt: skip
def test_what_would_block_is_one_sentence(asked: Requested, launched: Launched, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        judge_meeting(asked, launched, HERE)
    assert str(refused.value).startswith(sentence)


def test_local_rank_as_rank_is_right_on_one_node() -> None:
    assert judge_meeting(Requested(rank=LAUNCHED.local_rank, world_size=2), LAUNCHED, HERE) is Way.TORCH


def test_nccl_with_a_gpu_for_each_rank_passes() -> None:
    assert judge_meeting(Requested("nccl"), ON_GPUS, HERE) is Way.TORCH
    assert judge_meeting(Requested("cpu:gloo,cuda:nccl"), LAUNCHED, HERE) is Way.TORCH


def test_ranks_that_mean_the_same_place_call_it_the_same() -> None:
    assert meeting_name("tcp://localhost:1?rank=0&world_size=2", 2) == meeting_name("tcp://127.0.0.1:1?rank=1", 2)
    assert meeting_name("file:///a", 2) != meeting_name("file:///b", 2)
    assert meeting_name(None, 2) == meeting_name("env://", 2) == meeting_name(None, 2, "")
    moved = meeting_name(None, 2, "localhost:1")
    assert moved == meeting_name("env://", 2, "127.0.0.1:1") == meeting_name("tcp://h:1", 2)
    assert meeting_name(None, 2, ":") not in (meeting_name(None, 2), meeting_name("tcp://h:1", 2))
    assert meeting_name("tcp://h:1", 1) != meeting_name("tcp://h:1", 2)


@pytest.mark.parametrize(
    ("asked", "gpus", "per_gpu", "gets"),
    [("nccl", 1, 4, "gloo"), ("NCCL", 1, 2, "gloo"), ("nccl", 1, 1, "nccl"), ("nccl", 2, 4, "nccl"), ("nccl", 0, 4, "nccl"), (None, 1, 4, None), ("cpu:gloo,cuda:nccl", 1, 4, "cpu:gloo,cuda:nccl")],
)  # fmt: skip
def test_ranks_that_share_a_gpu_have_gloo_for_nccl(
    asked: str | None, gpus: int, per_gpu: int, gets: str | None
) -> None:
    assert backend_of_shared_gpus(asked, replace(LAUNCHED, gpus=gpus), per_gpu) == gets
