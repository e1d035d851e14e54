"""A mistake on one node, which it finds before it connects, is said on all of them: nobody waits for a node that has ended."""

import socket
from contextlib import suppress

import pytest

from tests.support.launching import LIMIT_S, start, until, write_script
from tests.support.promises import promise
from tests.support.several_nodes import KEY, free_port

pytestmark = pytest.mark.ranks

SCRIPT = "import pathlib\npathlib.Path('started').touch()\n"
USUAL = {"an option of the script": (("--lr", "0.1"), "No such option '--lr'.")}
MORE = {
    "an interface that does not exist": (("--local-addr", "eth77"), "'eth77' in --local-addr is neither an address"),
    "a value that is none": (("--threads", "many"), "Invalid value for '--threads'"),
    "hogwild": (("--strategy", "hogwild"), "hogwild shares the parameters in the memory of one node"),
    "a number that does not fit": (("--node-rank", "7"), "--node-rank 7 does not fit --nnodes"),
    "no number of nodes": (("--nnodes", "2x"), "--nnodes must be a number of nodes"),
    "no times": (("--rdzv-conf", "x"), "--rdzv-conf x cannot be read."),
    "a bad name": (("--name", "a/b"), "--name must be a folder's name"),
}


def begin(tmp_path, port, number, *more, nnodes="2", key=KEY):
    folder = tmp_path / f"node{number}"
    folder.mkdir()
    where = ["--nnodes", nnodes, "--node-rank", str(number), "--rdzv-endpoint", f"127.0.0.1:{port}"]
    script = write_script(folder, SCRIPT)
    return start(folder, *where, "-n", "1", "--threads", "1", *more, script, env={"SAMEBITS_KEY": key})


def listens(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), LIMIT_S):
        return True
    return False


def check(tmp_path, runs, sentence):
    """All end with the sentence and exit code 2, and leave nothing; returns the line of each."""
    said = []
    for run in runs:
        ended = run.finish()
        told = [line for line in ended.err.splitlines() if line.startswith(("error:", "help:"))]
        assert (ended.code, len(told), ended.out, ended.folder) == (2, 2, "", None), ended.err
        assert sentence in told[0] and "Traceback" not in ended.err
        until(lambda run=run: not run.processes(), "the end of all processes", LIMIT_S)
        said.append(told[0])
    assert not list(tmp_path.rglob("started"))
    return said


def check_second(tmp_path, more, sentence, nodes=2):
    port = free_port()
    runs = [begin(tmp_path, port, number, nnodes=str(nodes)) for number in range(nodes - 1)]
    until(lambda: listens(port), "node 0")
    runs.append(begin(tmp_path, port, nodes - 1, *more, nnodes=str(nodes)))
    *others, own = check(tmp_path, runs, sentence)
    assert own.startswith(f"error: {sentence}")
    for one in others:
        assert "(host " in one and " cannot start: " in one


@promise(
    "shut",
    "A mistake that one node finds before it connects is said on all; another key is named on node 0",
    also=[
        "test_a_mistake_of_the_first_node_is_said_on_those_who_wait_for_it",
        "test_a_first_node_that_cannot_use_its_own_key_says_so_to_those_who_wait_for_it",
        "test_another_key_is_said_on_the_first_node_which_goes_on_waiting",
    ],
)
@pytest.mark.parametrize("mistake", USUAL.values(), ids=USUAL)
def test_a_mistake_of_the_last_of_three_nodes_is_said_on_all(tmp_path, mistake):
    check_second(tmp_path, *mistake, nodes=3)


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", MORE.values(), ids=MORE)
def test_every_mistake_that_a_node_finds_by_itself_is_said_on_the_first_one(tmp_path, mistake):
    check_second(tmp_path, *mistake)


@pytest.mark.thorough
def test_a_first_node_that_cannot_use_its_own_key_says_so_to_those_who_wait_for_it(tmp_path):
    port, key = free_port(), tmp_path / "run.key"
    key.write_text(KEY)
    key.chmod(0o644)
    runs = [begin(tmp_path, port, 1)]
    until(lambda: "Nobody listens" in runs[0].err, "node 1 to look for node 0")
    runs.append(begin(tmp_path, port, 0, "--key-file", str(key)))
    there, own = check(tmp_path, runs, "key")
    assert "cannot use its key, and says why." in there
    assert "Others may read or write the key file" in own


def test_a_mistake_of_the_first_node_is_said_on_those_who_wait_for_it(tmp_path):
    port = free_port()
    runs = [begin(tmp_path, port, 1)]
    until(lambda: "Nobody listens" in runs[0].err, "node 1 to look for node 0")
    runs.append(begin(tmp_path, port, 0, "--local-addr", "eth77"))
    said = check(tmp_path, runs, "'eth77' in --local-addr is neither an address")
    assert said[0].startswith("error: Node 0 (host ")


@pytest.mark.thorough
def test_who_comes_late_to_nodes_that_were_refused_hears_why(tmp_path):
    port = free_port()
    runs = [begin(tmp_path, port, number, "--lanes", str(4 + number), nnodes="3") for number in (0, 1)]
    until(lambda: "error:" in runs[0].err, "the refusal")
    runs.append(begin(tmp_path, port, 2, "--lanes", "4", nnodes="3"))
    check(tmp_path, runs, "The nodes differ in --lanes: 4 on ")


def test_another_key_is_said_on_the_first_node_which_goes_on_waiting(tmp_path):
    port = free_port()
    first = begin(tmp_path, port, 0, "--rdzv-conf", "join_timeout=600")
    until(lambda: listens(port), "node 0")
    other = begin(tmp_path, port, 1, key="f" * 32).finish()
    assert other.code == 2 and "This node's key is not that of node 0" in other.err
    until(
        lambda: "connection from 127.0.0.1 rejected: wrong key" in first.err,
        "a word about it",
    )
    assert first.process.poll() is None
    first.clean_up()
