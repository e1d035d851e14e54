"""The hosts that tests of several nodes run on are what they seem: apart from each other, joined by links that do as told."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hosts import network, why_not
from tests.support.launching import listening_addresses, marked_processes, until, write_script

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(bool(why_not()), reason=why_not())]

ANSWER = """
import socket, sys
server = socket.create_server(("0.0.0.0", 4000))
print("ready", flush=True)
while True:
    end, _ = server.accept()
    end.sendall(b"x" * int(end.recv(100)))
    end.close()
"""
ASK = """
import socket, sys, time
began = time.monotonic()
end = socket.create_connection((sys.argv[1], 4000), timeout=float(sys.argv[3]))
end.sendall(sys.argv[2].encode())
got = 0
while block := end.recv(1 << 20):
    got += len(block)
print(got, time.monotonic() - began)
"""


@pytest.fixture(scope="module")
def two_hosts():
    with network(2, num_links=2) as made:
        yield made


@pytest.fixture
def hosts(two_hosts):
    yield two_hosts
    for host in two_hosts:
        host.reset()


def answers(host):
    """Start a server there that sends as many bytes as it is asked for."""
    server = host.start([sys.executable, "-c", ANSWER], stdout=subprocess.PIPE)
    assert server.stdout.readline() == "ready\n"
    return server


def ask(host, of, size, patience_s=30.0):
    """(bytes received, seconds) of one question; None where there was no answer."""
    done = host.run([sys.executable, "-c", ASK, of.address, str(size), str(patience_s)], check=False)
    return None if done.returncode else tuple(float(word) for word in done.stdout.split())


def test_hosts_have_names_and_addresses_of_their_own_and_know_each_other(hosts):
    first, second = hosts
    look = "import socket; print(socket.gethostname(), *(socket.gethostbyname(f'host{n}') for n in (0, 1)))"
    for host in hosts:
        assert host.run([sys.executable, "-c", look]).stdout.split() == [host.name, first.address, second.address]
    shown = second.run(["ip", "-4", "-brief", "address"]).stdout
    assert "10.77.0.2/24" in shown and "10.77.1.2/24" in shown and "127.0.0.1/8" in shown


def test_a_host_may_resolve_its_own_name_to_another_address():
    with network(2, own_name="127.0.1.1") as (first, _):
        look = "import socket; print(*(socket.gethostbyname(f'host{n}') for n in (0, 1)))"
        assert first.run([sys.executable, "-c", look]).stdout.split() == ["127.0.1.1", "10.77.0.2"]


def test_hosts_share_files_but_no_memory_and_programs_start_in_the_folder_given(hosts, tmp_path):
    first, second = hosts
    first.run(["sh", "-c", "pwd > where; echo secret > /dev/shm/held"], cwd=tmp_path)
    assert (tmp_path / "where").read_text().strip() == str(tmp_path)
    assert second.run(["ls", "/dev/shm"]).stdout == ""
    assert not Path("/dev/shm/held").exists()


def test_a_cut_link_carries_nothing_and_a_restored_one_the_rest(hosts):
    first, second = hosts
    answers(first)
    assert ask(second, first, 1000)[0] == 1000
    second.link.cut()
    assert ask(second, first, 1000, patience_s=0.3) is None
    second.link.restore()
    until(lambda: ask(second, first, 1000) is not None, "the link")


def test_a_limited_link_takes_its_time_and_its_bytes_are_counted(hosts):
    first, second = hosts
    answers(second)
    before = first.link.received_bytes, second.link.sent_bytes, second.links[1].sent_bytes
    first.link.limit(100)
    got, seconds = ask(first, second, 2_000_000)
    assert got == 2_000_000
    assert seconds > 0.14, "16 million bits over 100 a second, less what a token bucket lets through at once"
    assert 2_000_000 < first.link.received_bytes - before[0] < 2_300_000
    assert 2_000_000 < second.link.sent_bytes - before[1] < 2_300_000
    assert second.links[1].sent_bytes - before[2] < 10_000, "the other network carries none of it"


def test_killing_a_host_ends_all_its_processes_and_no_other_ones(hosts):
    first, second = hosts
    server = answers(first)
    forks = [first.start(["sh", "-c", "sleep 600 & sleep 600"]) for _ in range(2)]
    other = second.start(["sleep", "600"])
    until(lambda: len(first.processes()) == 7, "two shells with two sleepers each, and the server")
    assert {"0.0.0.0:4000"} == first.listening()
    assert second.listening() == set()
    assert listening_addresses(first.processes()) == {"00000000"}
    assert listening_addresses(second.processes()) == set()
    first.kill()
    assert first.processes() == []
    assert server.returncode == forks[0].returncode == -signal.SIGKILL
    assert other.poll() is None
    assert first.listening() == set()
    assert answers(first).poll() is None, "the host can be used again"


def test_packets_are_held_back_and_lost_as_told():
    with network(2, relayed=True) as (first, second):
        answers(first)
        assert ask(second, first, 100_000)[0] == 100_000
        second.link.disturb(delay_s=0.05)
        assert ask(second, first, 1000)[1] > 0.2, "two round trips of 0.1 s"
        second.link.disturb(loss=0.05)
        assert ask(second, first, 300_000)[0] == 300_000, "TCP sends again what was lost"
        second.link.disturb(loss=1.0)
        assert ask(second, first, 1000, patience_s=0.3) is None
        second.reset()
        until(lambda: ask(second, first, 1000) is not None, "the link")


@pytest.mark.thorough
def test_a_run_can_be_launched_on_a_host_warm_and_cold(hosts, tmp_path):
    text = """
        import os, socket
        print("host", socket.gethostname(), os.environ["WORLD_SIZE"], flush=True)
    """
    runs = []
    for number, host in enumerate(hosts):
        place = tmp_path / str(number)
        place.mkdir()
        runs.append(host.launch(place, "-n", "2", write_script(place, text), is_cold=bool(number)))
    for host, run in zip(hosts, runs, strict=True):
        assert set(run.processes()) <= set(host.processes())
        done = run.finish()
        assert done.code == 0, done.err
        assert f"host {host.name} 2" in done.out
        assert marked_processes(run.mark) == []
        until(lambda: host.processes() == [], "the end of all that the run started")  # noqa: B023


def test_nothing_is_left_of_a_network_whose_test_failed():
    with pytest.raises(RuntimeError, match="the test"), network(1) as (only,):
        sleeper = only.start(["sleep", "600"])
        spaces = Path(f"/proc/{only.holder}/ns/net").stat().st_ino
        raise RuntimeError("the test")
    assert sleeper.returncode == -signal.SIGKILL
    assert not any(space == spaces for space in namespaces())
    assert "net0" not in {name for _, name in socket.if_nameindex()}


def namespaces():
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield (folder / "ns" / "net").stat().st_ino
            except OSError:
                continue


def test_when_a_test_is_killed_its_hosts_are_gone_too():
    program = """
import sys, time
from tests.support.hosts import network
with network(1, relayed=True) as (only,):
    print(only.holder, only.link.switch, only.link.relay.pid, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as test:
        holders = [int(word) for word in test.stdout.readline().split()]
        assert len(holders) == 3
        test.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in holders), "the end of what keeps the namespaces")
