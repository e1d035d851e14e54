"""Real Open MPI and MPICH: a task per rank on one node and on two hosts, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Host, network
from tests.support.hosts import why_not as why_no_hosts
from tests.support.launching import LIMIT_S
from tests.support.tasks import read

OPEN_MPI, MPICH = "mpirun.openmpi", "mpirun.mpich"
MISSING = [name for name in (OPEN_MPI, MPICH) if not shutil.which(name)]
pytestmark = [
    pytest.mark.ranks,
    pytest.mark.thorough,
    pytest.mark.skipif(bool(MISSING), reason=f"there is no {', '.join(MISSING)} (apt-get install openmpi-bin mpich)"),
]
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OVER = {OPEN_MPI: ["--oversubscribe"], MPICH: []}
"""More tasks than cores."""
SAMEBITS = (sys.executable, "-m", "samebits", "run")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
INTO = """#!/bin/sh
# what ssh would be: an option or none, the host's name, then a command
[ "$1" = -x ] && shift
host=$1; shift
exec nsenter --target="$(cat "$(dirname "$0")/$host")" --net --uts --ipc --mount --wdns="$PWD" -- sh -c "$*"
"""


def mpirun(
    name: str, place: Path, *command: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    told = {**os.environ, **ROOT, **(env or {})}
    return subprocess.run(
        [name, *command], cwd=place, env=told, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )


@pytest.mark.parametrize("name", [OPEN_MPI, MPICH])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_task_per_rank_has_the_bits_of_one_and_listens_on_loopback_only(
    tmp_path: Path, script: str, bits: str, name: str, ranks: int
) -> None:
    done = mpirun(name, tmp_path, "-n", str(ranks), *OVER[name], sys.executable, script)
    assert done.returncode == 0, done.stderr
    told = read(tmp_path)
    assert [rank["bits"] for rank in told] == [bits] * ranks
    assert {rank["world"] for rank in told} == {ranks}
    assert {address for rank in told for address in rank["listens"]} <= {"127.0.0.1"}


def test_a_core_binding_that_nobody_asked_for_is_undone_and_one_that_was_asked_for_is_not(
    tmp_path: Path, script: str
) -> None:
    cores = len(os.sched_getaffinity(0))
    unset = {"OMP_NUM_THREADS": "", "THREADS": "auto"}
    for options, expected in (((), cores), (("--bind-to", "core"), 1)):
        done = mpirun(OPEN_MPI, tmp_path, "-n", "2", *options, sys.executable, script, env=unset)
        assert done.returncode == 0, done.stderr
        told = read(tmp_path)
        assert [rank["cores"] for rank in told] == [expected, expected]
        assert {rank["threads"] for rank in told} == {min(expected, max(1, cores // 4))}


@pytest.mark.parametrize("name", [OPEN_MPI, MPICH])
def test_around_samebits_run_it_is_refused_with_the_right_command(tmp_path: Path, script: str, name: str) -> None:
    done = mpirun(name, tmp_path, "-n", "2", *SAMEBITS, script)
    assert done.returncode == 2
    assert "error: mpirun started 2 tasks on this node, and each of them would start ranks of its own." in done.stderr
    assert f"help: Start it without mpirun: samebits run -n 2 {script}." in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "samebits-runs").exists()


@pytest.mark.parametrize("name", [OPEN_MPI, MPICH])
def test_around_torchrun_it_is_refused_with_the_right_command(tmp_path: Path, script: str, name: str) -> None:
    done = mpirun(name, tmp_path, "-n", "2", *TORCHRUN, script)
    assert done.returncode != 0
    assert "error: mpirun started torchrun 2 times on this node, and each of them started ranks" in done.stderr
    assert "help: Leave one of them out: `mpirun -n 2 python SCRIPT`, or torchrun alone." in done.stderr
    assert read(tmp_path) == []


@pytest.mark.parametrize("name", [OPEN_MPI, MPICH])
def test_one_process_of_mpirun_may_be_a_launcher(tmp_path: Path, script: str, bits: str, name: str) -> None:
    done = mpirun(name, tmp_path, "-n", "1", *SAMEBITS, "-n", "2", script)
    assert done.returncode == 0, done.stderr
    assert [rank["bits"] for rank in read(tmp_path)] == [bits, bits]


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    if reason := why_no_hosts():
        pytest.skip(reason)
    with network(2) as made:
        yield made


def over_hosts(hosts: list[Host], place: Path, name: str, *command: str) -> subprocess.CompletedProcess[str]:
    """mpirun on the first host, two tasks on each; namespaces stand for ssh."""
    for host in hosts:
        (place / host.name).write_text(str(host.holder))
    (place / "into").write_text(INTO)
    (place / "into").chmod(0o755)
    agent = str(place / "into")
    where = {
        OPEN_MPI: ["--host", "host0:2,host1:2", "--mca", "plm_rsh_agent", agent, "--mca", "btl_tcp_if_include", "eth0"],
        MPICH: ["-hosts", "host0:2,host1:2", "-launcher", "ssh", "-launcher-exec", agent],
    }[name]
    env = {**os.environ, **ROOT}
    return hosts[0].run([name, *where, "-n", "4", *command], place, env=env, check=False, timeout=2 * LIMIT_S)


@pytest.mark.parametrize("name", [OPEN_MPI, MPICH])
def test_over_two_hosts_it_needs_the_first_ones_name_and_has_the_bits_of_one_rank(
    two_hosts: list[Host], tmp_path: Path, script: str, bits: str, name: str
) -> None:
    done = over_hosts(two_hosts, tmp_path, name, sys.executable, script)
    assert done.returncode == 2, done.stderr
    option = "-x MASTER_ADDR=HOST" if name == OPEN_MPI else "-genv MASTER_ADDR HOST"
    assert f"help: Name it: mpirun {option} ..." in done.stderr
    told = ["-x", "MASTER_ADDR=host0"] if name == OPEN_MPI else ["-genv", "MASTER_ADDR", "host0"]
    done = over_hosts(two_hosts, tmp_path, name, *told, sys.executable, script)
    assert done.returncode == 0, done.stderr
    ranks = read(tmp_path)
    assert [rank["bits"] for rank in ranks] == [bits] * 4
    assert [rank["nodes"] for rank in ranks] == [[2, 2]] * 4
    assert {address for rank in ranks for address in rank["listens"]} == {"10.77.0.1", "10.77.0.2"}
