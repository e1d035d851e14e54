"""A SLURM cluster on hosts of this machine: munged, slurmctld on the first host, a slurmd on each, all of Debian's packages.

    with network(2) as hosts, cluster(hosts) as slurm:
        done = slurm.run("srun", "-N", "2", "hostname", cwd=tmp_path)

A job that is put back into the queue starts again within seconds (cred_expire), not after two minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.support.hosts import Host
from tests.support.hosts import why_not as why_no_hosts
from tests.support.launching import LIMIT_S, until

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
FREEZER = Path("/sys/fs/cgroup/freezer")
CPUS = 4
"""Of each host, as SLURM is told."""
CONFIGURATION = """
ClusterName=test
SlurmctldHost={first.name}({first.address})
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.%n.log
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=30
FirstJobId={job}
PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""


@cache
def why_not() -> str:
    """Why this machine has no cluster; empty where it does."""
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=_path())]:
        return f"SLURM needs {', '.join(missing)} (apt-get install slurmctld slurmd slurm-client munge)"
    return why_no_hosts()


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin"


@dataclass(eq=False)
class Cluster:
    """The cluster, seen from its first host."""

    hosts: Sequence[Host]
    place: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run srun, sbatch, squeue or scontrol to its end, whatever its exit code."""
        told = {**self.environment, **(env or {})}
        return self.hosts[0].run(command, cwd, env=told, check=False, timeout=2 * LIMIT_S)

    def start(self, *command: str, cwd: Path, **how: object) -> subprocess.Popen[str]:
        """Start one of them."""
        return self.hosts[0].start(command, cwd, env=self.environment, **how)

    def jobs(self) -> str:
        """Every job's number and state, a line each."""
        return self.run("squeue", "-h", "-o", "%i %T", cwd=self.place).stdout

    def wait_for_end(self) -> None:
        """Wait until there is no job."""
        until(lambda: not self.jobs(), "the end of all jobs", 2 * LIMIT_S)

    def reset(self) -> None:
        """End all jobs."""
        self.run("scancel", "--full", "--signal=KILL", "--user=root", cwd=self.place)
        self.run("scancel", "--user=root", cwd=self.place)
        self.wait_for_end()


@contextlib.contextmanager
def cluster(hosts: Sequence[Host], tracking: str = "linuxproc") -> Iterator[Cluster]:
    """The cluster, until the block ends.

    Args:
        hosts: all of it.
        tracking: how SLURM finds a step's processes: "cgroup" signals its tasks, as on most clusters, "linuxproc" all.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, contextlib.ExitStack() as stack:
        place = Path(name)
        place.chmod(0o755)
        job = random.randrange(1, 10**7)  # clusters at the same time share the control groups of hosts with one name
        nodes = ",".join(host.name for host in hosts)
        text = CONFIGURATION.format(first=hosts[0], place=place, nodes=nodes, tracking=tracking, job=job)
        lines = [f"NodeName={host.name} NodeAddr={host.address} CPUs={CPUS} State=UNKNOWN" for host in hosts]
        (place / "slurm.conf").write_text("\n".join([text, *lines, ""]))
        (place / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
        (place / "state").mkdir()
        (place / "munge.key").write_bytes(os.urandom(128))
        (place / "munge.key").chmod(0o600)
        environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(place / "slurm.conf")}
        files = [f"--{name}={place}/munge.{end}" for name, end in MUNGE.items()]
        stack.enter_context(_daemon(hosts[0], ["munged", "--foreground", "--force", *files], environment, place))
        until((place / "munge.socket").exists, "munged", LIMIT_S)
        stack.enter_context(_daemon(hosts[0], ["slurmctld", "-D"], environment, place))
        for host in hosts:
            stack.enter_context(_daemon(host, ["slurmd", "-D", "-N", host.name], environment, place))
        made = Cluster(hosts, place, environment)
        until(lambda: _idle(made) == len(hosts), "the cluster", LIMIT_S)
        yield made
        made.run("scontrol", "shutdown", cwd=place)
    for host in hosts:  # what slurmd leaves of a group, if no other cluster's is in it
        for folder in sorted((FREEZER / f"slurm_{host.name}").glob("**/"), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()


MUNGE = {
    "key-file": "key",
    "socket": "socket",
    "pid-file": "pid",
    "log-file": "log",
    "seed-file": "seed",
}


def _idle(made: Cluster) -> int:
    return made.run("sinfo", "-h", "-N", "-o", "%t", cwd=made.place).stdout.split().count("idle")


@contextlib.contextmanager
def _daemon(host: Host, command: Sequence[str], environment: Mapping[str, str], place: Path) -> Iterator[None]:
    """A server on a host; it is not one of those that `Host.reset` ends by name, but it ends with the block."""
    with (place / f"{command[0]}.{host.name}.out").open("wb") as out:
        process = host.start(command, place, env=environment, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait(LIMIT_S)
