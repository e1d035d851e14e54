"""Nodes that Ray places: a real cluster of three raylets on this machine, with Ray from `build/ray` (`make nodes`)."""

from __future__ import annotations

import contextlib
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
    for cpus, resources in [(0, {}), *[(2, {"room": 1})] * 3]:  # on the first one are the programs that use it
        cluster.add_node(
            num_cpus=cpus, object_store_memory=80 << 20, include_dashboard=False, temp_dir=sys.argv[1], resources=resources
        )
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()
"""
DRIVER = """
    import json, sys, ray, samebits.ray
    ray.init(address=sys.argv[1], runtime_env={"working_dir": sys.argv[2]})
    try:
        told = list(samebits.ray.run(**json.loads(sys.argv[3])).codes)
    except samebits.ray.UsageError as error:
        told = str(error)
    except samebits.ray.EnvironmentFailure as error:
        told = f"world: {error}"
    print("told", json.dumps(told), flush=True)
"""


class Cluster:
    """A running one, and programs that use it."""

    def __init__(self, address: str, mark: str, folder: str) -> None:
        self.address, self.mark, self.folder = address, mark, folder

    def start(self, place: Path, **arguments: Any) -> subprocess.Popen[str]:
        """Start a program that calls `samebits.ray.run` with these arguments, for a script in the folder `place`."""
        words = ["-c", textwrap.dedent(DRIVER), self.address, str(place), json.dumps(arguments)]
        return started(self.mark, words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, place: Path, **arguments: Any) -> tuple[Any, str]:
        """What `samebits.ray.run` returned or raised, and all that was printed."""
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


@contextlib.contextmanager
def killed(driver: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """It does not outlive the block, whatever fails there."""
    with driver:
        try:
            yield driver
        finally:
            driver.kill()


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A cluster of three nodes and one for the programs that use it, until the block ends."""
    mark, folder = uuid.uuid4().hex, tempfile.mkdtemp(prefix="ray-")  # a short path: its sockets lie below it
    words = ["-c", textwrap.dedent(CLUSTER), folder]
    try:
        with started(mark, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as head:
            assert head.stdin is not None and head.stdout is not None
            yield Cluster(head.stdout.readline().strip(), mark, folder)
            head.stdin.close()
            head.wait(60)
    finally:
        for process in marked_processes(mark):
            kill(process)
        until(lambda: not marked_processes(mark), "the end of Ray")
        shutil.rmtree(folder, ignore_errors=True)


def agents(mark: str) -> list[int]:
    """The launchers that Ray has started."""
    ours = ["-m", "samebits", "run"]
    return [process for process in marked_processes(mark) if words_of(process)[1:4] == ours]


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


ALL_REDUCE = """
import os, sys, time, pathlib, torch, torch.distributed as dist
places, notes = sys.argv[1], pathlib.Path(sys.argv[2])
dist.init_process_group("gloo")
mine = torch.zeros(4)
mine[dist.get_rank()] = float(os.environ["GROUP_RANK"]) + 1
dist.all_reduce(mine)
(notes / f"rank-{dist.get_rank()}-{os.getpid()}").write_text(f"{os.environ['RAY_RAYLET_PID']} {mine.tolist()}")
while places == "wait" and not (notes / "stop").exists():
    dist.all_reduce(mine)
    time.sleep(0.05)
dist.destroy_process_group()
"""


def notes_of(folder: Path) -> dict[int, list[str]]:
    """What each process of a rank noted."""
    found: dict[int, list[str]] = {}
    for file in folder.glob("rank-*"):
        found.setdefault(int(file.name.split("-")[1]), []).append(file.read_text())
    return found


def test_two_nodes_that_ray_placed_meet_and_are_apart(cluster: Cluster, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (tmp_path / "script.py").write_text(ALL_REDUCE)
    told, out = cluster.run(tmp_path, command=["script.py", "end", str(notes)], nodes=2, ranks_per_node=2)
    assert told == [0, 0], out
    raylets, sums = zip(*(notes_of(notes)[rank][0].split(" ", 1) for rank in range(4)), strict=True)
    assert raylets[0] == raylets[1] != raylets[2] == raylets[3], "two ranks on each of two nodes"
    assert set(sums) == {"[1.0, 1.0, 2.0, 2.0]"}


def test_a_node_whose_agent_was_killed_comes_back_and_all_train_again(cluster: Cluster, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (tmp_path / "script.py").write_text(ALL_REDUCE)
    arguments = {"command": ["script.py", "wait", str(notes)], "nodes": 2, "ranks_per_node": 2, "restarts": 1}
    with killed(cluster.start(tmp_path, **arguments, options=["--max-restarts", "3"])) as driver:
        until(lambda: len(notes_of(notes)) == 4, "the ranks of both nodes")
        (second,) = (agent for agent in agents(cluster.mark) if word_after(agent, "--node-rank") == "1")
        key = variables_of(second)["SAMEBITS_KEY"]
        assert len(key) >= 32
        assert not any(key in " ".join(words_of(process)) for process in marked_processes(cluster.mark))
        assert subprocess.run(["grep", "-rlsF", key, cluster.folder], capture_output=True, text=True).stdout == ""
        kill(second)
        until(lambda: all(len(texts) == 2 for texts in notes_of(notes).values()), "all ranks once more")
        (notes / "stop").touch()
        out = driver.communicate(timeout=100)[0]
    assert "told [0, 0]" in out


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running() as made:
        yield made


def words_of(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().split("\0")
    except OSError:
        return []


def word_after(process: int, option: str) -> str:
    words = words_of(process)
    return words[words.index(option) + 1]


def test_a_node_that_ray_lost_comes_back_on_another_one(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (tmp_path / "script.py").write_text(ALL_REDUCE)
    arguments = {"command": ["script.py", "wait", str(notes)], "nodes": 2, "ranks_per_node": 1, "restarts": 1}
    options = ["--max-restarts", "3"]
    with running() as cluster, killed(cluster.start(tmp_path, **arguments, options=options)) as driver:
        until(lambda: len(notes_of(notes)) == 2, "the ranks of both nodes")
        (lost,) = (text.split()[0] for text in notes_of(notes)[1])
        there = [process for process in marked_processes(cluster.mark) if raylet_of(process) == lost]
        assert len(there) >= 3, "an agent, its nursery and its rank"
        for process in [int(lost), *there]:
            with contextlib.suppress(ProcessLookupError):  # it has ended with another one
                kill(process)
        until(lambda: all(len(texts) == 2 for texts in notes_of(notes).values()), "all ranks once more")
        (notes / "stop").touch()
        out = driver.communicate(timeout=100)[0]
    assert "told [0, 0]" in out
    assert len({text.split()[0] for text in notes_of(notes)[1]}) == 2, "on another node of the cluster"


def raylet_of(process: int) -> str:
    try:
        return variables_of(process).get("RAY_RAYLET_PID", "")
    except OSError:
        return ""


def variables_of(process: int) -> dict[str, str]:
    lines = Path(f"/proc/{process}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)
