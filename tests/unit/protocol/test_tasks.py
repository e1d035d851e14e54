"""What srun and mpirun say to the processes that they start, from environments that they really made."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.protocol.environment import Position, decode
from samebits.protocol.tasks.innermost import innermost
from samebits.protocol.tasks.meeting import TaskMeeting, meeting_of
from samebits.protocol.tasks.mpi import is_bound_unasked
from samebits.protocol.tasks.slurm import counts, hosts
from samebits.protocol.tasks.task import FIRST_PORT, NUM_PORTS, is_in_order, port_for
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


def test_a_task_is_a_rank():
    environment = decode(MPICH)
    assert (environment.position, environment.settings) == (Position(1, 1, 2, 2), None)
    assert environment.task == innermost(MPICH)
    assert decode(SRUN | {"RANK": "0", "WORLD_SIZE": "1"}).position == Position(1, 0, 2, 1)
    assert decode(BATCH).task is None


def test_what_torchrun_says_is_nearer_than_srun():
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
    environment = decode(SRUN | torchrun | {"TORCHELASTIC_RUN_ID": "job7"})
    assert (environment.position, environment.task) == (Position(3, 1, 4, 2), None)


def test_an_elastic_torchrun_may_be_alone_for_a_while():
    alone = {"RANK": "0", "WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "job7"}
    assert decode(SRUN | alone).position == Position()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            MPICH | {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job7", "GROUP_WORLD_SIZE": "1"},
            "torchrun 2 times on this node, and each of them started ranks of its own. Leave one of them out: `mpirun -n 2",
        ),
        (
            SRUN | {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "8e4e0ea2-2a4e-4c35-9c4f-1d6d8f9f2f11"},
            "srun started torchrun 2 times on 2 nodes",
        ),
        (
            SRUN | {"RANK": "0", "WORLD_SIZE": "2"},
            "RANK is 0, but srun started this as task 1 of 2. Unset RANK and WORLD_SIZE: srun's own",
        ),
    ],
)
def test_what_says_something_else_than_the_launcher_is_refused(variables, said):
    with pytest.raises(UsageError) as caught:
        decode(variables)
    assert said in str(caught.value)


def test_tasks_of_one_node_meet_on_loopback_at_a_port_of_their_own():
    task = innermost(MPICH)
    first, second = meeting_of(task, {}, 100), meeting_of(task, {"MASTER_ADDR": "elsewhere"}, 200)
    assert (first.host, first.is_on_one_node) == ("127.0.0.1", True)
    assert second.host == "127.0.0.1"
    assert first.port != second.port
    assert meeting_of(task, {"MASTER_PORT": "4000"}, 100).port == 4000


def test_tasks_of_several_nodes_meet_at_the_first_host_or_where_they_are_told():
    task = innermost(SRUN)
    assert meeting_of(task, {}) == TaskMeeting("n1", port_for("7.0"), ("n2",))
    assert meeting_of(task, {"MASTER_ADDR": "ib1", "MASTER_PORT": "4000"}) == TaskMeeting("ib1", 4000, ("n2",))
    assert meeting_of(task, {"MASTER_ADDR": "localhost"}).host == "n1"


@pytest.mark.parametrize(
    ("variables", "told", "said"),
    [
        (
            MPICH | {"PMI_SIZE": "4"},
            {},
            "MPICH does not say on which host rank 0 is. Name it: mpirun -genv MASTER_ADDR",
        ),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "4"}, {}, "Name it: mpirun -x MASTER_ADDR=HOST"),
        (SRUN, {"MASTER_PORT": "0"}, "MASTER_PORT must be a port from 1 to 65535, but is 0."),
        (SRUN, {"MASTER_PORT": "http"}, "MASTER_PORT must be a port from 1 to 65535, but is http."),
    ],
)
def test_a_place_that_nobody_knows_is_refused(variables, told, said):
    with pytest.raises(UsageError) as caught:
        meeting_of(innermost(variables), told)
    assert said in str(caught.value)


def test_a_binding_is_undone_only_if_nobody_asked_for_it():
    bound = {"OMPI_MCA_orte_bound_at_launch": "1"}
    assert is_bound_unasked(bound)
    assert is_bound_unasked(bound | {"OMPI_MCA_rmaps_base_mapping_policy": "ppr:2:node"})
    assert not is_bound_unasked({})
    assert not is_bound_unasked(bound | {"OMPI_MCA_hwloc_base_binding_policy": "core"})
    assert not is_bound_unasked(bound | {"OMPI_MCA_hwloc_base_cpu_set": "0"})
    assert not is_bound_unasked(bound | {"OMPI_MCA_rmaps_base_mapping_policy": "slot:PE=4"})


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_ranks_of_one_node_must_be_neighbours(sizes):
    block = [(f"n{node}", local) for node, size in enumerate(sizes) for local in range(size)]
    assert is_in_order(block)
    cyclic = sorted(block, key=lambda place: (place[1], place[0]))
    assert is_in_order(cyclic) == (cyclic == block)
