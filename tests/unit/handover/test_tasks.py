"""What srun and mpirun say to the processes that they start, from environments that they really made."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.handover.tasks.hostlist import counts, hosts
from lockstep.handover.tasks.innermost import innermost
from lockstep.handover.tasks.task import FIRST_PORT, NUM_PORTS, port_for
from tests.support.launcher_variables import BATCH, MPICH, OPEN_MPI, SRUN


def test_a_host_list_is_spread_as_scontrol_does():
    said = {
        "n1": ["n1"],
        "n[1-3]": ["n1", "n2", "n3"],
        "n[01-03,07],login": ["n01", "n02", "n03", "n07", "login"],
        "n[9-11]": ["n9", "n10", "n11"],
        "rack[0-1]n[08-10],x": [*(f"rack{rack}n{node}" for rack in (0, 1) for node in ("08", "09", "10")), "x"],
    }
    for text, names in said.items():
        assert hosts(text) == tuple(names)
        if shutil.which("scontrol"):
            told = subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True, check=False)
            assert told.returncode or told.stdout.split() == names  # it wants a configuration file that it may not have


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), min_size=1, max_size=5))
def test_numbers_of_tasks_are_spread(pairs):
    text = ",".join(f"{tasks}(x{times})" if times > 1 else str(tasks) for tasks, times in pairs)
    assert counts(text) == tuple(tasks for tasks, times in pairs for _ in range(times))


@pytest.mark.parametrize("text", ["", "n[", "n[1-2", "n]1[", "n[a-b]", "n[1-999999999]", "n[-3]", "a,,b", "n[1--2]"])
def test_what_is_no_host_list_is_refused(text):
    with pytest.raises(ValueError):
        hosts(text)


@pytest.mark.parametrize("text", ["", "2(x", "2x3", "-1", "2(x3)(x2)", "1,,1", "1(x999999999)"])
def test_what_is_no_list_of_numbers_is_refused(text):
    with pytest.raises(ValueError):
        counts(text)


def test_a_task_of_srun_knows_its_hosts_and_its_job():
    task = innermost(SRUN | {"SLURM_LAUNCH_NODE_IPADDR": "10.9.9.9"})
    assert (task.rank, task.size, task.local_rank, task.local_size) == (1, 2, 0, 1)
    assert (task.node, task.nodes, task.hosts, task.job) == (1, 2, ("n1", "n2"), "7.0")
    assert task.is_one_per_node


def test_uneven_tasks_of_srun_are_counted_for_this_node():
    more = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "3,2", "SLURM_PROCID": "4", "SLURM_LOCALID": "1"}
    task = innermost(SRUN | more)
    assert (task.rank, task.local_rank, task.local_size, task.is_one_per_node) == (4, 1, 2, False)


def test_a_batch_script_and_a_shell_of_srun_are_no_tasks():
    assert innermost(BATCH) is None
    assert innermost(SRUN | {"SLURM_PTY_PORT": "40000"}) is None


@pytest.mark.parametrize("missing", ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_LOCALID"])
def test_left_over_variables_of_slurm_are_no_task(missing):
    assert innermost({name: value for name, value in SRUN.items() if name != missing}) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"SLURM_PROCID": "2"},
        {"SLURM_NODEID": "5"},
        {"SLURM_STEP_NODELIST": "n["},
        {"SLURM_STEP_TASKS_PER_NODE": "1"},
        {"SLURM_LOCALID": "x"},
    ],
)
def test_variables_of_slurm_that_contradict_each_other_are_no_task(wrong):
    assert innermost(SRUN | wrong) is None


@pytest.mark.parametrize(("variables", "launcher"), [(OPEN_MPI, "Open MPI"), (MPICH, "MPICH")])
def test_a_task_of_mpirun_on_one_node(variables, launcher):
    task = innermost(variables)
    assert (task.launcher, task.rank, task.size, task.local_rank, task.local_size) == (launcher, 1, 2, 1, 2)
    assert (task.nodes, task.node, task.hosts) == (1, 0, ())


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH])
def test_one_variable_of_mpirun_alone_is_left_over(variables):
    for name, value in variables.items():
        assert innermost({name: value}) is None
        assert innermost({"RANK": "1", "WORLD_SIZE": "2", name: value}) is None


def test_mpirun_inside_a_slurm_job_is_nearer_than_srun_and_uses_the_jobs_hosts():
    inner = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_MCA_orte_num_nodes": "2"}
    task = innermost(SRUN | OPEN_MPI | inner)
    assert (task.launcher, task.node, task.nodes, task.hosts) == ("Open MPI", 1, 2, ("n1", "n2"))


def test_a_single_process_of_mpirun_is_no_task():
    assert innermost(MPICH | {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}) is None


@given(st.text())
def test_a_port_is_the_same_everywhere_and_below_those_that_linux_gives_away(job):
    assert port_for(job) == port_for(job)
    assert FIRST_PORT <= port_for(job) < FIRST_PORT + NUM_PORTS < 32768
