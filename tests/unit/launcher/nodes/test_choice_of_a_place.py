"""Where a node is: the command line over the innermost launcher."""

import pytest

from samebits.errors import UsageError
from samebits.launcher.nodes.place import NodePlace, Options, choose_place
from samebits.protocol.tasks.task import port_for
from tests.support.launcher_variables import BATCH, MPICH, OPEN_MPI, SKYPILOT, SRUN, TRAINER
from tests.support.promises import promise

FOUR_PER_NODE = SRUN | {
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
ONE_EACH = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_MCA_orte_num_nodes": "2"}


def refusal(message, variables):
    with pytest.raises(UsageError) as caught:
        choose_place(message, variables, "train.py")
    return str(caught.value)


@pytest.mark.parametrize(
    ("message", "variables"),
    [
        (Options(), {}),
        (Options(nnodes="1"), SRUN | OPEN_MPI | TRAINER | SKYPILOT),
        (Options(nnodes="1:1"), {"PET_NODE_RANK": "3"}),
        (Options(standalone=True, rdzv_endpoint="localhost:0"), SRUN),
        (Options(rdzv_endpoint="localhost:0", rdzv_backend="zeus", rdzv_conf="x"), {}),
        (Options(), BATCH),
        (Options(), {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "LOCAL_RANK": "1"}),
        (Options(), {"OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "1", "PMIX_RANK": "0", "SLURM_NTASKS": "8"}),
        (Options(), {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "h", "PET_RDZV_ENDPOINT": "no port", "PET_NNODES": ""}),
        (Options(), {"PET_NNODES": "1", "PET_NODE_RANK": "1"}),
        (Options(), {"JOB_COMPLETION_INDEX": "3"}),
        (Options(), SKYPILOT | {"SKYPILOT_NUM_NODES": "3"}),
        (Options(), {"LWS_LEADER_ADDRESS": "l", "LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}),
    ],
)
def test_one_node_stays_one_node_whatever_is_left_over(message, variables):
    assert choose_place(message, variables) == NodePlace()


def test_by_hand_node_0_may_choose_where_it_is():
    assert choose_place(Options(nnodes="2"), {}) == NodePlace(2, 2, 0)
    assert choose_place(Options(nnodes="1:4", node_rank="0", rdzv_id="job7"), {}) == NodePlace(1, 4, 0, job="job7")


def test_by_hand_as_torchrun_has_it():
    message = Options(
        "1:4", None, "host:29500", "job7", "c10d", "join_timeout=90,last_call_timeout=2,read_timeout=1", "eth0"
    )
    place = NodePlace(1, 4, None, "host:29500", "job7", local="eth0", join_s=90, last_call_s=2)
    assert choose_place(message, {}) == place
    static = Options("2", "1", master_addr="host")
    assert choose_place(static, {}) == NodePlace(2, 2, 1, "host:29500")
    assert choose_place(Options("2", "1", master_addr="fe80::1", master_port="1"), {}).endpoint == "[fe80::1]:1"


def test_pet_variables_stand_for_options_that_are_not_given():
    assert choose_place(Options(), TRAINER) == NodePlace(
        2, 2, 1, "job-node-0-0.job:29500", ranks="4", launcher="torchrun's PET_*"
    )
    place = choose_place(Options("1:3", rdzv_endpoint="other:1"), TRAINER)
    assert (place.least, place.most, place.number, place.endpoint) == (1, 3, 1, "other:1")
    elastic = {"PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "w-0:23456", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "none"}
    assert choose_place(Options(), elastic) == NodePlace(1, 4, None, "w-0:23456", launcher="torchrun's PET_*")


def test_srun_says_everything():
    assert choose_place(Options(), SRUN) == NodePlace(
        2, 2, 1, f"n1:{port_for('7.0')}", "7.0", launcher="SLURM", hosts=("n1", "n2")
    )
    named = SRUN | {"MASTER_ADDR": "n1-ib", "MASTER_PORT": "5000"}
    assert choose_place(Options(), named).endpoint == "n1-ib:5000"
    assert choose_place(Options(), SRUN | {"MASTER_ADDR": "127.0.0.1"}).endpoint == f"n1:{port_for('7.0')}"


def test_the_command_line_wins_over_the_launcher():
    place = choose_place(Options("1:2", rdzv_endpoint="10.0.0.9:1", rdzv_id="mine"), SRUN)
    assert place == NodePlace(1, 2, 1, "10.0.0.9:1", "mine", launcher="SLURM", hosts=("n1", "n2"))


def test_the_innermost_launcher_wins():
    place = choose_place(Options(), SRUN | TRAINER | SKYPILOT)
    assert (place.launcher, place.endpoint, place.number) == ("SLURM", f"n1:{port_for('7.0')}", 1)
    place = choose_place(Options(), SRUN | OPEN_MPI | ONE_EACH)
    assert (place.launcher, place.endpoint, place.number) == ("Open MPI", f"n1:{port_for('1983643649')}", 1)


def test_mpirun_with_one_process_per_node_needs_to_be_told_where_the_first_is():
    assert "Open MPI does not say where node 0 is." in refusal(Options(), OPEN_MPI | ONE_EACH)
    place = choose_place(Options(rdzv_endpoint="a:1"), OPEN_MPI | ONE_EACH)
    assert place == NodePlace(2, 2, 1, "a:1", "1983643649", launcher="Open MPI")
    assert choose_place(Options(), OPEN_MPI | ONE_EACH | {"MASTER_ADDR": "a"}).endpoint == f"a:{port_for('1983643649')}"


def test_an_indexed_job_has_a_number_beside_nnodes():
    place = choose_place(Options("2", rdzv_endpoint="train-0.train:29400"), {"JOB_COMPLETION_INDEX": "1"})
    assert place == NodePlace(2, 2, 1, "train-0.train:29400", launcher="Kubernetes")
    assert "Kubernetes does not say where node 0 is." in refusal(Options("2"), {"JOB_COMPLETION_INDEX": "0"})


def test_a_leader_worker_set_and_skypilot_say_everything():
    lws = {"LWS_LEADER_ADDRESS": "set-0.set.default", "LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "2"}
    place = choose_place(Options(), lws)
    assert (place.least, place.most, place.number, place.launcher) == (3, 3, 2, "Kubernetes")
    assert place.endpoint == f"set-0.set.default:{port_for('set-0.set.default')}"
    place = choose_place(Options(), SKYPILOT | {"SKYPILOT_TASK_ID": "sky-1"})
    assert place.hosts == ("10.0.0.1", "10.0.0.2")
    assert (place.number, place.endpoint, place.job) == (1, f"10.0.0.1:{port_for('sky-1')}", "sky-1")


@promise(
    "never-a-silent-wrong-gradient",
    "srun or mpirun around a launcher of one node is refused with the right command; left-over variables "
    "make no second node",
    also=["test_torchrun_that_knows_of_one_node_only_is_refused", "test_one_node_stays_one_node_whatever_is_left_over"],
)
@pytest.mark.parametrize(
    ("variables", "printed"),
    [
        (FOUR_PER_NODE, "srun started 8 tasks on 2 nodes, and each of them would start ranks of its own. "),
        (FOUR_PER_NODE, "srun -N 2 -n 2 -c 4 samebits run -n 4 train.py"),
        (OPEN_MPI, "mpirun started 2 tasks on this node, and each of them would start ranks of its own. "),
        (MPICH, "Start it without mpirun: samebits run -n 2 train.py."),
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_orte_num_nodes": "2"},
            "mpirun -n 2 --map-by ppr:1:node samebits run -n 2 train.py",
        ),
        (MPICH | {"PMI_SIZE": "6"}, "mpirun -n 3 -ppn 1 samebits run -n 2 train.py"),
    ],
)
def test_a_task_per_rank_around_a_launcher_is_refused_with_the_right_command(variables, printed):
    assert printed in refusal(Options(), variables)


def test_several_tasks_on_one_machine_may_stand_for_nodes():
    place = choose_place(Options("2"), MPICH)
    assert place == NodePlace(2, 2, 1, f"127.0.0.1:{port_for('')}", launcher="MPICH")


@pytest.mark.parametrize(
    ("message", "variables", "printed"),
    [
        (Options("0"), {}, "--nnodes must be a number of nodes or MIN:MAX, but is 0."),
        (Options("2:1"), {}, "but is 2:1."),
        (Options("1:2:3"), {}, "but is 1:2:3."),
        (Options("two"), {}, "but is two."),
        (Options("99999"), {}, "but is 99999."),
        (Options(), {"PET_NNODES": "x"}, "PET_NNODES must be a number of nodes or MIN:MAX, but is x."),
        (Options("2", standalone=True), {}, "--standalone is for one node, and --nnodes asks for 2."),
        (Options(node_rank="1"), {}, "--node-rank 1 is for several nodes, and there is one."),
        (Options("1", "1"), {}, "--node-rank 1 is for several nodes, and there is one."),
        (Options("2", "2"), {}, "--node-rank 2 does not fit --nnodes 2: nodes count from 0 to 1."),
        (Options("2", "x"), {}, "--node-rank must be a node's number, but is x."),
        (Options("2", "-1"), {}, "--node-rank must be a node's number, but is -1."),
        (Options("2", "1"), {}, "Nothing says where node 0 is, and this is node 1."),
        (Options("2", rdzv_endpoint="host"), {}, "--rdzv-endpoint host has no port. Give --rdzv-endpoint host:29400"),
        (Options("2", rdzv_endpoint="::1"), {}, "--rdzv-endpoint ::1 has no port. Give --rdzv-endpoint [::1]:29400"),
        (
            Options("2", rdzv_endpoint="[::1]"),
            {},
            "--rdzv-endpoint [::1] has no port. Give --rdzv-endpoint [::1]:29400",
        ),
        (
            Options("2", rdzv_endpoint="host:0"),
            {},
            "The port of --rdzv-endpoint host:0 must be a number from 1 to 65535.",
        ),
        (Options("2", rdzv_endpoint="host:65536"), {}, "must be a number from 1 to 65535."),
        (Options("2", rdzv_endpoint=":29400"), {}, "--rdzv-endpoint :29400 names no host."),
        (Options("2", rdzv_endpoint="a b:1"), {}, "--rdzv-endpoint a b:1 names no host."),
        (Options("2", master_addr="h", master_port="x"), {}, "--master-port must be a number from 1 to 65535."),
        (Options("2", rdzv_backend="etcd"), {}, "--rdzv-backend etcd needs a server"),
        (Options("2", rdzv_conf="join_timeout"), {}, "--rdzv-conf join_timeout cannot be read."),
        (
            Options("2", rdzv_conf="timeout=soon"),
            {},
            "timeout of --rdzv-conf must be a number of seconds, but is soon.",
        ),
        (Options("2"), {"PET_RDZV_ENDPOINT": "h"}, "PET_RDZV_ENDPOINT h has no port. Give PET_RDZV_ENDPOINT h:29400"),
        (Options(), SRUN | {"MASTER_PORT": "0"}, "MASTER_PORT must be a number from 1 to 65535."),
        (Options("3"), SRUN, "SLURM started this on 2 nodes, but --nnodes waits for 3. Leave --nnodes out"),
        (Options("2"), SKYPILOT | {"SKYPILOT_NUM_NODES": "3", "SKYPILOT_NODE_IPS": "a b c"}, "but --nnodes allows 2."),
        (Options(node_rank="0"), SRUN, "--node-rank says 0, but SLURM says that this is node 1. Leave --node-rank out"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(message, variables, printed):
    assert printed in refusal(message, variables)
