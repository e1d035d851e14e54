"""A run of several nodes that is started wrongly says so in a sentence on every node, and leaves nothing."""

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.launching import LIMIT_S, start, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import os, pathlib
pathlib.Path("started").touch()
"""
KEY = "0123456789abcdef0123456789abcdef"
TWO = ("--node-rank", "0"), ("--node-rank", "1")


@dataclass
class Start:
    """How two or more nodes are started on this machine, and what all of them say."""

    said: str
    nodes: tuple[tuple[str, ...], ...] = TWO
    """The options of each beside those that all have."""
    common: tuple[str, ...] = ()
    endpoint: str = "127.0.0.1:PORT"
    nnodes: str = "2"
    env: tuple[dict[str, str], ...] = ()
    scripts: tuple[str, ...] = (SCRIPT,)
    args: tuple[tuple[str, ...], ...] = ()


LOCAL = {
    "an endpoint without a port": Start("--rdzv-endpoint 127.0.0.1 has no port.", endpoint="127.0.0.1"),
    "an unknown host": Start("has no address on this machine", endpoint="nowhere.invalid:29500"),
    "an unknown interface": Start("'eth77' in --local-addr is neither an", common=("--local-addr", "eth77")),
    "hogwild": Start("hogwild", common=("--strategy", "hogwild")),
    "dp": Start("dp", common=("--strategy", "dp")),
    "--standalone": Start("--standalone", common=("--standalone",)),
    "a short key": Start("5 characters", env=({"SAMEBITS_KEY": "short"},)),
}
"""What every node knows by itself; no process is started for it."""
TOGETHER = {
    "two nodes with one number": Start(
        "were started as node 1.", nodes=(*TWO, ("--node-rank", "1")), nnodes="3", common=("--device", "cpu")
    ),
    "lanes for fewer ranks": Start("but is 1 with 2 ranks on all nodes.", common=("--lanes", "1")),
}
MORE_TOGETHER = {
    "two first nodes": Start("were started as node 0.", nodes=(TWO[0], TWO[0])),
    "other arguments": Start("The nodes differ in the script's arguments: 1 on ", args=(("1",), ("2",))),
    "other scripts": Start("The nodes differ in the script: script.py", scripts=(SCRIPT, SCRIPT + "#")),
    "other lanes": Start("The nodes differ in --lanes: 4 on ", nodes=((*TWO[0], "--lanes=4"), (*TWO[1], "--lanes=8"))),
    "other checks": Start("The nodes differ in --check-every: off on ", nodes=((*TWO[0], "--check-every=off"), TWO[1])),
    "other counts": Start("The nodes disagree about how many they are", nodes=((*TWO[0], "--nnodes=3"), TWO[1])),
    "a mesh for more ranks": Start("On all nodes together: mesh ddp=3 does not fit", common=("--mesh", "ddp=3")),
}


def begin(tmp_path, case):
    key, runs = {"SAMEBITS_KEY": KEY}, []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for place, own in enumerate(case.nodes):
        folder = tmp_path / f"node{place}"
        folder.mkdir()
        script = write_script(folder, case.scripts[place % len(case.scripts)])
        env = {**key, **(case.env[place % len(case.env)] if case.env else {})}
        endpoint = case.endpoint.replace("PORT", str(port))
        options = ["--nnodes", case.nnodes, "--rdzv-endpoint", endpoint, "-n", "1", "--threads", "1"]
        args = case.args[place] if case.args else ()
        runs.append(start(folder, *options, *case.common, *own, script, *args, env=env))
    return runs


def check(tmp_path, case):
    before = {path.name for path in Path("/dev/shm").iterdir()}
    runs = begin(tmp_path, case)
    for run in runs:
        finished = run.finish()
        said = [line for line in finished.err.splitlines() if line.startswith(("error:", "help:"))]
        assert (finished.code, len(said)) == (2, 2), finished.err
        assert case.said in said[0]
        assert "Traceback" not in finished.err and finished.out == ""
        assert finished.folder is None
    assert not list(Path(tmp_path).rglob("started"))
    for run in runs:
        until(lambda run=run: not run.processes(), "the end of all processes", LIMIT_S)
    pids = {str(run.process.pid) for run in runs}
    left = {path.name for path in Path("/dev/shm").iterdir()} - before
    assert not [name for name in left if pids & set(name.split("-"))]


@promise(
    "shut",
    "Several nodes that were started wrongly say so in one sentence with exit code 2, start no rank and leave nothing",
    also=["test_what_nodes_find_out_together_is_said_on_all_of_them"],
)
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.thorough if one != "an unknown host" else ()) for one in LOCAL]
)
def test_what_a_node_knows_by_itself_is_said_before_anything_starts(tmp_path, name):
    check(tmp_path, LOCAL[name])


@pytest.mark.parametrize("case", TOGETHER.values(), ids=TOGETHER)
@pytest.mark.thorough
def test_what_nodes_find_out_together_is_said_on_all_of_them(tmp_path, case):
    check(tmp_path, case)


@pytest.mark.thorough
@pytest.mark.parametrize("case", MORE_TOGETHER.values(), ids=MORE_TOGETHER)
def test_more_of_what_nodes_find_out_together(tmp_path, case):
    check(tmp_path, case)


def test_a_port_that_another_program_has_is_refused_on_both_nodes(tmp_path):
    def serve():
        while True:
            with suppress(ConnectionError), taken.accept()[0] as end:
                if not end.recv(1):
                    return
                end.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = threading.Thread(target=serve)
        server.start()
        try:
            check(
                tmp_path,
                Start(
                    "is not node 0 of a run of this version of samebits.",
                    endpoint=f"127.0.0.1:{taken.getsockname()[1]}",
                ),
            )
        finally:
            socket.create_connection(taken.getsockname()).close()
            server.join()


@pytest.mark.thorough
def test_a_key_file_that_cannot_be_used_ends_the_start(tmp_path):
    check(tmp_path, Start("Cannot read the key file", common=("--key-file", str(tmp_path / "none")), nodes=TWO[1:]))


@pytest.mark.thorough
def test_nodes_on_one_disk_share_a_name_and_its_states(tmp_path):
    script = write_script(tmp_path, "import samebits\nrun = samebits.init(seed=1)\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "-n", "1", "--threads", "1"]
    runs = []
    for number in ("0", "1"):
        (tmp_path / number).mkdir()
        options = [*common, "--node-rank", number, "--name", "exp", "--save-every", "5steps"]
        place = ["--log-dir", str(tmp_path / "runs"), str(tmp_path / script)]
        runs.append(start(tmp_path / number, *options, *place, env={"SAMEBITS_KEY": KEY}))
    assert [run.finish().code for run in runs] == [0, 0], [run.err for run in runs]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["exp"]
    assert len(list((tmp_path / "runs" / "exp").glob("*-script*"))) == 2


def test_a_first_node_whose_port_another_program_has_is_told_to_take_another_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"127.0.0.1:{other.getsockname()[1]}"
        options = ("--nnodes", "2", "--rdzv-endpoint", endpoint, "--node-rank", "0", "-n", "1")
        done = start(tmp_path, *options, write_script(tmp_path, SCRIPT), env={"SAMEBITS_KEY": KEY}).finish()
    assert done.code == 2, done.err
    assert "If another program has this port, name another one in --rdzv-endpoint on all nodes." in done.err
    assert not (tmp_path / "started").exists()
