"""What a process makes of the variables that a launcher, or nobody, has set for it."""

from __future__ import annotations

import json

import pytest

from samebits.errors import UsageError
from samebits.protocol.environment import Position, check_address, decode, decode_place
from tests.support.promises import promise

TWO = {"RANK": "0", "WORLD_SIZE": "2"}
LEFT_OVER = {
    "TORCHELASTIC_RUN_ID": "gone", "TORCHELASTIC_RESTART_COUNT": "x", "TORCHELASTIC_MAX_RESTARTS": "x",
    "TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_RANK": "7", "LOCAL_WORLD_SIZE": "0", "GROUP_RANK": "3",
    "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "x", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "x",
    "SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": "x", "PMI_RANK": "", "PMI_SIZE": "",
}  # fmt: skip


def test_what_other_launchers_left_over_makes_no_rank() -> None:
    assert decode(LEFT_OVER).position == Position()


@promise(
    "bad-input-and-what-a-person-is-told",
    "Variables of torchrun, Slurm and MPI that contradict each other are a `UsageError`; with all of them "
    "left over, without a home, a locale, a terminal or a temporary folder a run works",
    also=["test_a_run_works_in_the_oddest_surroundings_at_once"],
)
@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"RANK": "7", "WORLD_SIZE": "4"}, "RANK=7 does not fit WORLD_SIZE=4: ranks count from 0 to 3."),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 does not fit WORLD_SIZE=4"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 does not fit WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE must be at least 1, but is 0."),
        ({"RANK": "a", "WORLD_SIZE": "2"}, "RANK must be a whole number, but is 'a'."),
        ({"RANK": "", "WORLD_SIZE": ""}, "RANK must be a whole number, but is ''."),
        ({"RANK": "0"}, "RANK=0 is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set but RANK is not"),
        ({**TWO, "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0 does not fit WORLD_SIZE=2."),
        ({**TWO, "LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3 does not fit WORLD_SIZE=2."),
        ({**TWO, "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "2"}, "LOCAL_RANK=2 does not fit 2 ranks on this node."),
        ({**TWO, "LOCAL_RANK": "-1"}, "LOCAL_RANK=-1 does not fit 2 ranks on this node."),
        ({**TWO, "LOCAL_RANK": "x"}, "LOCAL_RANK must be a whole number, but is 'x'."),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, "srun started 8 tasks, and this one (SLURM_PROCID=3)"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun started 4 tasks"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "mpirun started 2 tasks"),
    ],
)
def test_what_cannot_be_is_one_sentence(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        decode(variables)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("text", ["", "junk", "{}", "[]", "1", '{"run_folder": 1}', "[" * 100_000])
def test_what_another_version_set_is_named(text: str) -> None:
    for name, read in (("SAMEBITS_RANK", decode), ("SAMEBITS_RANK_MEETING", decode_place)):
        with pytest.raises(UsageError, match=f"^{name} is not what `samebits run` of this version sets .* Unset it.$"):
            read({name: text})
    told = {"run_folder": "/tmp", "form": {"unknown": 1}, "arithmetic": {}, "restart": {}}
    with pytest.raises(UsageError, match="this version"):
        decode({"SAMEBITS_RANK": json.dumps(told)})


def test_a_device_may_be_chosen_by_the_local_rank_of_one_process_alone() -> None:
    assert decode({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "5"}).position.local_rank == 5


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({}, "RANK and WORLD_SIZE are set but MASTER_ADDR is not"),
        ({"MASTER_ADDR": "localhost"}, "MASTER_PORT must be a whole number, but is None."),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "abc"}, "MASTER_PORT must be a whole number, but is 'abc'."),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "70000"}, "MASTER_PORT must be a port from 0 to 65535"),
    ],
)
def test_an_address_that_is_none_is_one_sentence(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_address(variables)
    assert str(refused.value).startswith(sentence)
