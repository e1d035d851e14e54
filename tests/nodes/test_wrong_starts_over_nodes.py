"""Nodes on hosts of their own that cannot meet: which way is closed is said on every node, before any rank starts."""

import pytest

from tests.support.hosts import network, why_not
from tests.support.launching import until, write_script
from tests.support.promises import promise

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(bool(why_not()), reason=why_not())]

KEY = {"SAMEBITS_KEY": "0123456789abcdef0123456789abcdef"}
SCRIPT = "import pathlib\npathlib.Path('started').touch()\n"


def start_all(tmp_path, hosts, endpoint, *more):
    """Start a node on each host."""
    runs = []
    for number, host in enumerate(hosts):
        folder = tmp_path / host.name
        folder.mkdir()
        where = ["--nnodes", str(len(hosts)), "--node-rank", str(number), "--rdzv-endpoint", endpoint]
        options = [*where, "-n", "1", "--threads", "1", *more]
        runs.append(host.launch(folder, *options, write_script(folder, SCRIPT), env=KEY))
    return runs


def refusals(runs, tmp_path):
    """What each node says at its end; nothing of a run is left."""
    ended = [run.finish() for run in runs]
    assert [one.code for one in ended] == [2] * len(runs), [one.err for one in ended]
    assert not list(tmp_path.rglob("started")) and not [one.folder for one in ended if one.folder]
    return [next(line for line in one.err.splitlines() if line.startswith("error:")) for one in ended]


@promise(
    "shut",
    "Nodes that cannot reach each other are named on every node, with the direction, before any rank starts",
)
def test_two_nodes_that_do_not_reach_each_other_are_named_on_all_three(tmp_path):
    with network(3) as hosts:
        hosts[2].run(["ip", "route", "add", "blackhole", hosts[1].address])
        said = refusals(start_all(tmp_path, hosts, f"{hosts[0].address}:29500"), tmp_path)
        assert len(set(said)) == 1
        assert "ode 1 (host host1) cannot reach node 2 (host host2) at 10.77.0.3 (nothing answers)" in said[0]
        assert "ode 2 (host host2) cannot reach node 1 (host host1) at 10.77.0.2 (invalid argument)" in said[0]


def test_a_name_that_is_127_0_1_1_on_node_0_is_refused_there_with_the_addresses(tmp_path):
    with network(2, own_name="127.0.1.1") as hosts:
        run = start_all(tmp_path, hosts[:1], "host0:29500", "--nnodes", "2")[0]
        assert "On this machine host0 is 127.0.1.1 (see /etc/hosts)" in refusals([run], tmp_path)[0]
        assert "10.77.0.1 (eth0)" in run.err


@pytest.mark.thorough
def test_that_is_said_on_the_node_to_which_the_name_means_another_address(tmp_path):
    with network(2, own_name="127.0.1.1") as hosts:
        folder = tmp_path / "one"
        folder.mkdir()
        options = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "host0:29500", "-n", "1", "--threads", "1"]
        other = hosts[1].launch(folder, *options, write_script(folder, SCRIPT), env=KEY)
        until(lambda: "Nobody listens at 10.77.0.1:29500" in other.err, "a node that waits")
        first = start_all(tmp_path, hosts[:1], "host0:29500", "--nnodes", "2")[0]
        said = refusals([first, other], tmp_path)
        assert said[1] == said[0].replace("error: ", "error: Node 0 (host host0) cannot start: ")


@pytest.mark.thorough
def test_a_loopback_interface_for_nodes_elsewhere_is_refused_on_both(tmp_path):
    with network(2) as hosts:
        endpoint = f"{hosts[0].address}:29500"
        first = start_all(tmp_path, hosts[:1], endpoint, "--nnodes", "2")[0]
        until(lambda: endpoint in hosts[0].listening(), "node 0")
        folder = tmp_path / "one"
        folder.mkdir()
        options = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", endpoint, "--local-addr", "lo", "-n", "1"]
        other = hosts[1].launch(folder, *options, "--threads", "1", write_script(folder, SCRIPT), env=KEY)
        said = refusals([first, other], tmp_path)
        assert said[1] == "error: Nodes on other machines cannot reach 127.0.0.1 (lo)."
        assert said[0] == f"error: Node 1 (host host1) cannot start: {said[1][7:]}"


@pytest.mark.thorough
def test_a_firewall_that_drops_everything_to_node_0_is_named(tmp_path):
    with network(2) as hosts:
        hosts[0].run(["ip", "route", "add", "blackhole", hosts[1].address])
        folder = tmp_path / "one"
        folder.mkdir()
        options = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", f"{hosts[0].address}:29500", "-n", "1"]
        run = hosts[1].launch(folder, *options, "--threads", "1", write_script(folder, SCRIPT), env=KEY)
        assert "Nothing answers at 10.77.0.1:29500" in refusals([run], tmp_path)[0]
