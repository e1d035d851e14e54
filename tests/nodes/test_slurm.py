"""Real SLURM on two hosts, whose own names mean 127.0.1.1 there: a task per rank, one `samebits run` per node, requeue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import network
from tests.support.launching import LIMIT_S, until
from tests.support.promises import promise
from tests.support.slurm import FREEZER, Cluster, cluster, why_not
from tests.support.tasks import read

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.thorough,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

SAMEBITS = (sys.executable, "-m", "samebits")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[Cluster]:
    with network(2, own_name="127.0.1.1") as hosts, cluster(hosts) as made:
        yield made


@pytest.fixture
def slurm(one_cluster: Cluster) -> Iterator[Cluster]:
    yield one_cluster
    one_cluster.reset()


@promise(
    "never-a-silent-wrong-gradient",
    "A task per rank of srun, Open MPI and MPICH has the bits of one rank; a killed task ends all, and leaves nothing",
    also=[
        "test_a_task_per_rank_has_the_bits_of_one_and_listens_on_loopback_only",
        "test_a_killed_task_ends_all_and_leaves_nothing_behind",
    ],
)
@pytest.mark.parametrize(
    ("tasks", "sizes"),
    [(("--ntasks-per-node=2",), [2, 2]), (("--ntasks-per-node=1",), [1, 1]), (("-n", "3"), [2, 1])],
    ids=["2+2", "1+1", "2+1"],
)
def test_a_task_per_rank_has_the_bits_of_one_shares_its_nodes_memory_and_listens_on_one_address(
    slurm: Cluster, tmp_path: Path, script: str, bits: str, tasks: tuple[str, ...], sizes: list[int]
) -> None:
    done = slurm.run("srun", "-N", "2", *tasks, sys.executable, script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = read(tmp_path)
    assert {rank["bits"] for rank in ranks} == {bits}
    assert {rank["world"] for rank in ranks} == {len(ranks)}
    assert [rank["nodes"] for rank in ranks] == [sizes] * sum(sizes)
    assert ranks[0]["listens"] == ["10.77.0.1"]
    assert {address for rank in ranks for address in rank["listens"]} <= {"10.77.0.1", "10.77.0.2"}


@pytest.mark.parametrize("rank", [0, 3])
def test_a_killed_task_ends_all_and_leaves_nothing_behind(
    slurm: Cluster, tmp_path: Path, script: str, rank: int
) -> None:
    command = ("srun", "-N", "2", "-n", "4", "env", f"DIES={rank}", sys.executable, script)
    done = slurm.run(*command, cwd=tmp_path)
    assert done.returncode != 0
    assert not read(tmp_path)
    for host in slurm.hosts:
        assert not [process for process in host.processes() if script in text_of(process)]
        assert host.run(["ls", "-A", "/dev/shm"]).stdout == ""


def text_of(process: int) -> str:
    """A process's command line; empty where it has just ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_ranks_dealt_out_in_turn_are_refused(slurm: Cluster, tmp_path: Path, script: str) -> None:
    done = slurm.run("srun", "-N", "2", "-n", "4", "--distribution=cyclic", sys.executable, script, cwd=tmp_path)
    assert "srun dealt the ranks out in turn, but those of a node must be neighbours." in done.stderr
    assert read(tmp_path) == []


def test_a_batch_script_of_several_nodes_without_srun_is_one_node(
    slurm: Cluster, tmp_path: Path, script: str, bits: str
) -> None:
    job = tmp_path / "job.sh"
    job.write_text(f"#!/bin/sh\n{' '.join(SAMEBITS)} run -n 2 {script}\n")
    done = slurm.run("sbatch", "--wait", "-N", "2", "--ntasks-per-node=2", str(job), cwd=tmp_path)
    assert done.returncode == 0, "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    assert [(rank["bits"], rank["world"]) for rank in read(tmp_path)] == [(bits, 2), (bits, 2)]


def test_a_task_per_rank_around_samebits_run_is_refused_with_the_right_command(
    slurm: Cluster, tmp_path: Path, script: str
) -> None:
    done = slurm.run("srun", "-N", "2", "-n", "8", *SAMEBITS, "run", script, cwd=tmp_path)
    assert done.returncode == 2
    assert "srun started 8 tasks on 2 nodes, and each of them would start ranks of its own." in done.stderr
    assert f"srun -N 2 -n 2 -c 4 samebits run -n 4 {script}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "samebits-runs").exists()


def test_one_samebits_run_per_node_finds_the_others(slurm: Cluster, tmp_path: Path, script: str, bits: str) -> None:
    done = slurm.run("srun", "-N", "2", "-n", "2", *SAMEBITS, "run", "-n", "2", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 nodes with 4 ranks" in done.stderr
    assert [(rank["bits"], rank["world"]) for rank in read(tmp_path)] == [(bits, 4)] * 4


def test_torchrun_as_the_only_task_of_a_node_goes_on_working(
    slurm: Cluster, tmp_path: Path, script: str, bits: str
) -> None:
    meets = "--nnodes=2 --nproc-per-node=2 --node-rank=$SLURM_NODEID --master-addr=10.77.0.1 --master-port=29500"
    command = f"exec {' '.join(TORCHRUN)} {meets} {script}"
    env = {"GLOO_SOCKET_IFNAME": "eth0"}
    done = slurm.run("srun", "-N", "2", "-n", "2", "sh", "-c", command, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert [rank["bits"] for rank in read(tmp_path)] == [bits] * 4


@pytest.mark.parametrize("tasks", ["2", "4"])
def test_torchrun_that_knows_of_one_node_only_is_refused(
    slurm: Cluster, tmp_path: Path, script: str, tasks: str
) -> None:
    done = slurm.run("srun", "-N", "2", "-n", tasks, *TORCHRUN, "--nproc-per-node=2", script, cwd=tmp_path)
    assert done.returncode != 0
    assert (
        f"error: srun started torchrun {tasks} times on 2 nodes, and each of them started ranks of its own."
        in done.stderr
    )
    assert f"help: Leave one of them out: `srun -n {tasks} python SCRIPT`, or torchrun alone." in done.stderr
    assert read(tmp_path) == []


def stopped_job(slurm: Cluster, place: Path, script: str, stop: str) -> None:
    """Submit a job that samebits wrote, stop it as SLURM would, and wait until it has gone on and ended."""
    own = (*SAMEBITS, "sbatch", "-n", "2", "--time", "10", "--save-every", "1h", "-o", "job.sbatch", script)
    written = slurm.run(*own, cwd=place)
    assert written.returncode == 0, written.stderr
    assert written.stdout == "wrote job.sbatch; submit it with: sbatch job.sbatch\n"
    submitted = slurm.run("sbatch", "--export=ALL,HOLDS=1", "job.sbatch", cwd=place)
    job = submitted.stdout.split()[-1]
    until((place / "holding").exists, "step 8", LIMIT_S)
    (place / "holding").unlink()
    slurm.run("scancel", "--signal=USR1", job, cwd=place) if stop == "USR1" else slurm.run(
        "scontrol", "requeue", job, cwd=place
    )
    out = place / f"script-{job}.out"
    until(
        lambda: "the run resumes" in out.read_text() and not slurm.jobs(),
        f"the job's end:\n{out.read_text()}",
        4 * LIMIT_S,
    )


@promise(
    "never-a-silent-wrong-gradient",
    "A job of SLURM whose time is nearly over is saved, goes back into the queue, and goes on with the same bits",
)
def test_a_job_whose_time_is_nearly_over_is_saved_and_goes_on_when_its_turn_comes_again(
    slurm: Cluster, tmp_path: Path, script: str, bits: str
) -> None:
    stopped_job(slurm, tmp_path, script, "USR1")
    out = next(tmp_path.glob("script-*.out")).read_text()
    assert "saved after step 9: the same command resumes from there" in out
    assert "the run resumes in epoch 2, after step 9" in out
    assert [rank["bits"] for rank in read(tmp_path)] == [bits, bits]


@pytest.mark.skipif(not FREEZER.is_dir(), reason="SLURM's proctrack/cgroup needs the freezer of cgroups, version 1")
def test_a_job_that_is_put_back_into_the_queue_is_saved_and_goes_on(tmp_path: Path, script: str, bits: str) -> None:
    with network(1) as hosts, cluster(hosts, "cgroup") as slurm:
        stopped_job(slurm, tmp_path, script, "requeue")
    out = next(tmp_path.glob("script-*.out")).read_text()
    assert "DUE TO JOB REQUEUE" in out  # srun may be killed before it hands on what the launcher says then
    assert "the run resumes in epoch 2, after step 9" in out
    assert [rank["bits"] for rank in read(tmp_path)] == [bits, bits]
