"""Nodes that Ray places: a real cluster of three raylets on this machine, with Ray from `build/ray` (`make nodes`)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import ROOT
from tests.support.launching import MARK, kill, marked_processes, until

RAY = ROOT / "build" / "ray"
pytestmark = [
    pytest.mark.ranks,
    pytest.mark.thorough,
    pytest.mark.skipif(not RAY.exists(), reason="Ray is not in build/ray: make nodes"),
]
CLUSTER = """
    import sys
    from ray.cluster_utils import Cluster
    cluster = Cluster()
    for _ in range(3):
        cluster.add_node(
            num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, temp_dir=sys.argv[1], resources={"room": 1}
        )
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()
"""
DRIVER = """
    import json, sys, ray, lockstep.ray
    ray.init(address=sys.argv[1], runtime_env={"working_dir": sys.argv[2]})
    try:
        told = list(lockstep.ray.run(**json.loads(sys.argv[3])).codes)
    except lockstep.ray.UsageError as error:
        told = str(error)
    except lockstep.ray.WorldError as error:
        told = f"world: {error}"
    print("told", json.dumps(told), flush=True)
"""


class Cluster:
    """A running one, and programs that use it."""

    def __init__(self, address: str, mark: str) -> None:
        self.address, self.mark = address, mark

    def start(self, place: Path, **arguments: Any) -> subprocess.Popen[str]:
        """Start a program that calls `lockstep.ray.run` with these arguments, for a script in the folder `place`."""
        words = ["-c", textwrap.dedent(DRIVER), self.address, str(place), json.dumps(arguments)]
        return started(self.mark, words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, place: Path, **arguments: Any) -> tuple[Any, str]:
        """What `lockstep.ray.run` returned or raised, and all that was printed."""
        with self.start(place, **arguments) as driver:
            out = driver.communicate(timeout=100)[0]
        (line,) = (
            (line for line in out.splitlines() if line.startswith("told ")) if "told " in out else (f"told {out!r}",)
        )
        return json.loads(line.removeprefix("told ")), out


def started(mark: str, words: list[str], **how: Any) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "OPENBLAS_"))}
    path = os.pathsep.join([str(RAY), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**own, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", MARK: mark}
    return subprocess.Popen([sys.executable, *words], text=True, env=variables, **how)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    mark, folder = uuid.uuid4().hex, tempfile.mkdtemp(prefix="ray-")  # a short path: its sockets lie below it
    words = ["-c", textwrap.dedent(CLUSTER), folder]
    try:
        with started(mark, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as head:
            assert head.stdin is not None and head.stdout is not None
            yield Cluster(head.stdout.readline().strip(), mark)
            head.stdin.close()
            head.wait(60)
    finally:
        for process in marked_processes(mark):
            kill(process)
        until(lambda: not marked_processes(mark), "the end of Ray")
        shutil.rmtree(folder, ignore_errors=True)


def agents(mark: str) -> list[int]:
    """The launchers that Ray has started."""
    found = []
    for process in marked_processes(mark):
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if words[1:4] == [b"-m", b"lockstep", b"run"]:
            found.append(process)
    return found


def test_an_agent_runs_where_ray_placed_it_and_its_output_is_shown(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\nprint('hello from', os.environ['RANK'], sys.argv[1:], os.environ['MINE'])"
    )
    told, out = cluster.run(tmp_path, command=["script.py", "--lr", "1"], nodes=1, ranks_per_node=2, env={"MINE": "x"})
    assert told == [0], out
    assert "\nhello from 0 ['--lr', '1'] x\n" in out, "as it was printed, and whole, although the program ends with it"


def test_the_scripts_failure_is_the_agents_exit_code(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise ValueError('mine')")
    told, out = cluster.run(tmp_path, command=["script.py"], nodes=1)
    assert told == [1], out
    assert "ValueError: mine" in out


def test_nodes_that_the_cluster_does_not_have_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    told, _ = cluster.run(tmp_path, command=["script.py"], nodes=4, resources={"CPU": 1, "room": 1}, patience_s=1)
    assert told == (
        "Ray found no place for 4 nodes with 1 CPU, 1 room each in 1 s: 3 of its nodes are so large. "
        "Use fewer nodes or smaller `resources`, or wait until others have left the cluster."
    )


def test_an_agent_that_was_killed_is_started_again_and_not_too_often(cluster: Cluster, tmp_path: Path) -> None:
    notes = tmp_path / "starts"
    (tmp_path / "script.py").write_text(
        f"import os, time\nopen({str(notes)!r}, 'a').write('x')\ntime.sleep(0 if os.path.getsize({str(notes)!r}) > 2 else 600)"
    )
    for restarts, ends in ((2, [0]), (0, "world: The agent of node 0 was ended by SIGKILL.")):
        notes.unlink(missing_ok=True)
        with cluster.start(tmp_path, command=["script.py"], nodes=1, ranks_per_node=1, restarts=restarts) as driver:
            for number in range(1, 1 + (restarts or 1)):
                until(lambda: notes.exists() and notes.stat().st_size == number, "the script's start")  # noqa: B023
                (agent,) = agents(cluster.mark)
                kill(agent)
            assert driver.stdout is not None
            out = driver.communicate(timeout=100)[0]
        assert f"told {json.dumps(ends)}" in out


def test_a_program_that_is_interrupted_leaves_no_agent(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import time\nopen('begun', 'w').close()\nprint('begun', flush=True)\ntime.sleep(600)"
    )
    with cluster.start(tmp_path, command=["script.py"], nodes=1) as driver:
        assert driver.stdout is not None
        assert any("begun" in line for line in driver.stdout)
        assert len(agents(cluster.mark)) == 1
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=60)
    until(lambda: agents(cluster.mark) == [], "the agents' end")


def test_an_agent_does_not_outlive_rays_worker(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    with cluster.start(tmp_path, command=["script.py"], nodes=1, restarts=0) as driver:
        assert driver.stdout is not None
        assert any("begun" in line for line in driver.stdout)
        (agent,) = agents(cluster.mark)
        kill(int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1]))
        until(lambda: agents(cluster.mark) == [], "the agent's end")
        assert '"world: Ray lost an agent of the run: ' in driver.communicate(timeout=60)[0]
