"""`samebits.spawn` where several processes would call it: one sentence, with what to do instead."""

import pytest

from samebits.errors import UsageError
from samebits.protocol.environment import OWN, check_spawn
from tests.support.launcher_variables import OPEN_MPI, SRUN


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({OWN: "{}", "RANK": "1", "GROUP_WORLD_SIZE": "1"}, "called in rank 1 of a run, so each rank .* with `python`"),
        ({OWN: "{}", "RANK": "3", "GROUP_WORLD_SIZE": "2"}, "in rank 3 of a run on 2 nodes, .* `samebits run -n N`"),
        ({OWN: "{}", "RANK": "1", "GROUP_WORLD_SIZE": "2", **SRUN}, "called in rank 1 of a run on 2 nodes"),
        (SRUN, "srun started 2 tasks on 2 nodes, .* with samebits.spawn. Call .* `srun -n 2 python SCRIPT`"),
        (OPEN_MPI, "mpirun started 2 tasks on this node, and each of them"),
    ],
    ids=["a rank", "over nodes", "over nodes of SLURM", "srun", "mpirun"],
)
def test_ranks_and_tasks_start_no_ranks_of_their_own(variables, sentence):
    with pytest.raises(UsageError, match=sentence):
        check_spawn(variables)


def test_any_other_process_may_start_ranks():
    check_spawn({"PATH": "/bin", "GROUP_WORLD_SIZE": "2"})
    check_spawn(
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}
    )
