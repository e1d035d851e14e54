"""Several hosts on this machine: each has a network, a name, `/etc/hosts` and shared memory of its own, and one switch joins them.

    with network(2) as (first, second):                  # host0 is 10.77.0.1, host1 is 10.77.0.2, both on eth0
        first.run(["ping", "-c1", second.address])
        launched = second.launch(tmp_path, "-n", "2", "train.py")
        second.link.cut()

Making two takes 0.1 s; a module's tests may share them and `reset` each after a test. A host is a process that waits in namespaces of its own; nothing has a name outside of them, so tests run side by side. When
the processes are gone the kernel takes everything away, so a test that is killed leaves no interface and no mount behind.
Processes have the same numbers everywhere, and all hosts see the same files but `/dev/shm`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.launching import LIMIT_S, Running, start, until, within
from tests.support.warm import Process

ROOT = Path(__file__).parents[2]
PROGRAMS = ("ip", "tc", "ss", "unshare", "nsenter")
OWN = ("--net", "--uts", "--ipc", "--mount")


@cache
def why_not() -> str:
    """Why this machine makes no hosts; empty where it does."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        return f"hosts need {', '.join(missing)} (apt-get install iproute2 util-linux)"
    tried = subprocess.run(
        ["unshare", *OWN, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, text=True
    )
    return f"hosts need root and namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass(eq=False)
class Link:
    """A host's cable: `device` on the host, `port` on the switch."""

    holder: int
    """A process on the host; so is `switch` one on the switch."""
    switch: int
    device: str
    port: str
    relay: subprocess.Popen[str] | None = None

    def cut(self) -> None:
        """Pull the cable out: nothing gets through, and nobody is told."""
        _in(self.switch, ["ip", "link", "set", self.port, "down"])

    def restore(self) -> None:
        """Put the cable back."""
        _in(self.switch, ["ip", "link", "set", self.port, "up"])

    def limit(self, mbit: float | None) -> None:
        """So many million bits in a second, in each direction; None takes the limit away."""
        for process, device in ((self.holder, self.device), (self.switch, self.port)):
            if mbit is None:
                _in(process, ["tc", "qdisc", "replace", "dev", device, "root", "noqueue"])
            else:
                burst = max(70_000, int(mbit * 1e6 / 8 / 250))  # a packet of 64 KiB, or 4 ms
                shape = ["tbf", "rate", f"{mbit}mbit", "burst", str(burst), "latency", "50ms"]
                _in(process, ["tc", "qdisc", "replace", "dev", device, "root", *shape])

    def disturb(self, delay_s: float = 0.0, loss: float = 0.0) -> None:
        """Hold every packet back, and lose this share of them, in each direction. The network was made with `relayed`."""
        assert self.relay is not None and self.relay.stdin is not None and self.relay.stdout is not None
        self.relay.stdin.write(json.dumps([delay_s, loss]) + "\n")
        self.relay.stdin.flush()
        assert self.relay.stdout.readline() == "disturbed\n"

    @property
    def received_bytes(self) -> int:
        """What the host has received, headers of packets included."""
        return self._counters()[0]

    @property
    def sent_bytes(self) -> int:
        """What the host has sent, headers of packets included."""
        return self._counters()[8]

    def _counters(self) -> list[int]:
        for line in Path(f"/proc/{self.holder}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == self.device:
                return [int(word) for word in counters.split()]
        raise AssertionError(f"the host has no {self.device}")


@dataclass(eq=False)
class Host:
    """A machine on the switch."""

    name: str
    address: str
    """Its IPv4 address on the first link."""
    holder: int
    """The process that keeps its namespaces."""
    links: list[Link]
    started: list[Process] = field(default_factory=list)

    @property
    def link(self) -> Link:
        """The first one."""
        return self.links[0]

    def start(self, command: Sequence[str], cwd: Path | None = None, **how: Any) -> subprocess.Popen[str]:
        """Start a program here; the process is the program's own."""
        process = subprocess.Popen([*within(self.holder, cwd or Path.cwd()), *command], text=True, **how)
        self.started.append(process)
        return process

    def run(self, command: Sequence[str], cwd: Path | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a program here to its end, and read what it says."""
        told = {"capture_output": True, "timeout": LIMIT_S, "check": True, **how}
        return subprocess.run([*within(self.holder, cwd or Path.cwd()), *command], text=True, **told)

    def launch(
        self, place: Path, *options: str, env: Mapping[str, str] | None = None, is_cold: bool = False
    ) -> Running:
        """Start `samebits run OPTIONS` here, in a folder which no other host's run has."""
        run = start(place, *options, env=env, is_cold=is_cold, holder=self.holder)
        self.started.append(run.process)
        return run

    def processes(self) -> list[int]:
        """The living processes of this host."""
        own, found = Path(f"/proc/{self.holder}/ns/net").stat().st_ino, []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self.holder:
                with contextlib.suppress(OSError):  # it ends meanwhile
                    if (folder / "ns" / "net").stat().st_ino == own:
                        found.append(int(folder.name))
        return found

    def kill(self) -> None:
        """End all processes at once: none sees another one's end. The kernel closes their connections, unless the link is cut."""
        until(lambda: not self._kill(), f"the end of all processes of {self.name}")
        for process in self.started:
            process.wait(LIMIT_S)

    def reset(self) -> None:
        """As after the start: no process, no pipe to one, and links that carry everything."""
        self.end()
        for link in self.links:
            link.restore()
            link.limit(None)
            if link.relay is not None:
                link.disturb()

    def end(self) -> None:
        """Kill all, and close the pipes to what was started here."""
        self.kill()
        for process in self.started:
            for name in ("stdin", "stdout", "stderr"):
                if pipe := getattr(process, name, None):
                    with contextlib.suppress(OSError):  # what a dead program has not read
                        pipe.close()
        self.started.clear()

    def _kill(self) -> set[int]:
        left = {
            *self.processes(),
            *(process.pid for process in self.started if process.poll() is None),
        }  # on their way here
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
        return left

    def lose(self, other: Host) -> None:
        """Break the way to one other host alone, in both directions: frames go to a card that nobody has."""
        for one, there in ((self, other), (other, self)):
            to = ["ip", "neigh", "replace", there.address, "lladdr", "02:00:00:00:00:99"]
            one.run([*to, "dev", one.link.device, "nud", "permanent"])

    def lose_only(self, other: Host) -> None:
        """After `lose`: what the other one sends arrives again, and nothing of what is sent from here."""
        other.run(["ip", "neigh", "del", self.address, "dev", other.link.device])

    def freeze(self) -> None:
        """Stop every process, while the kernel goes on answering; until their end."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)

    def listening(self) -> set[str]:
        """`ADDRESS:PORT` of every TCP socket here that accepts connections, as ss shows it: `*` is every address."""
        return {line.split()[3] for line in self.run(["ss", "-Hltn"]).stdout.splitlines()}


@contextlib.contextmanager
def network(
    num_hosts: int, *, num_links: int = 1, relayed: bool = False, own_name: str | None = None
) -> Iterator[list[Host]]:
    """Hosts on one switch, until the block ends; then all their processes are killed.

    Args:
        num_hosts: how many, `host0` and so on.
        num_links: on how many networks each of them is: `eth0` with 10.77.0.0/24, `eth1` with 10.77.1.0/24 and so on.
        relayed: every packet goes through a process that can hold it back or lose it (`Link.disturb`); it carries some 50 MB/s.
        own_name: to which address a host's own name resolves there, as Debian does with 127.0.1.1; None for its address.
    """
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(_holder("--net"))
        commands = [f"link add net{link} type bridge mcast_snooping 0" for link in range(num_links)]
        _ip(switch, [*commands, *(f"link set net{link} up" for link in range(num_links))])
        addresses = {f"host{number}": f"10.77.0.{number + 1}" for number in range(num_hosts)}
        hosts = []
        for number, (name, address) in enumerate(addresses.items()):
            holder = stack.enter_context(_holder(*OWN))
            _furnish(holder, name, {**addresses, **({name: own_name} if own_name else {})})
            links = [Link(holder, switch, f"eth{link}", f"port{link}.{number}") for link in range(num_links)]
            hosts.append(Host(name, address, holder, links))
            stack.callback(hosts[-1].end)
            for network, link in enumerate(links):
                if relayed:
                    link.relay = stack.enter_context(_relay(link))
                else:
                    _ip(switch, [f"link add {link.port} type veth peer name {link.device} netns {holder}"])
                _ip(switch, [f"link set {link.port} master net{network} up"])
                given = f"10.77.{network}.{number + 1}/24"
                _ip(holder, [f"addr add {given} dev {link.device}", f"link set {link.device} up", "link set lo up"])
        yield hosts


@contextlib.contextmanager
def _holder(*namespaces: str) -> Iterator[int]:
    """A process in namespaces of its own, which are gone when it and all others in them are."""
    command, pipe = ["unshare", *namespaces, "cat"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("there\n")
        process.stdin.flush()
        assert process.stdout.readline() == "there\n"  # by now it is cat, and in its namespaces
        yield process.pid
        process.stdin.close()


@contextlib.contextmanager
def _relay(link: Link) -> Iterator[subprocess.Popen[str]]:
    """What stands for a link's cable where packets are to be held back or lost."""
    words = [str(link.switch), link.port, str(link.holder), link.device]
    command, pipe = [sys.executable, "-m", "tests.support.relay", *words], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def _furnish(holder: int, name: str, addresses: Mapping[str, str]) -> None:
    """A host's name, its `/etc/hosts` and its own shared memory."""
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    with tempfile.NamedTemporaryFile("w", prefix="hosts-") as file:
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        Path(file.name).chmod(0o644)
        mounts = f"hostname {name} && mount --bind {file.name} /etc/hosts && mount -t tmpfs tmpfs /dev/shm"
        _in(holder, ["sh", "-c", mounts])


def _ip(process: int, commands: Sequence[str]) -> None:
    """Commands of `ip` where a process is."""
    _in(process, ["ip", "-batch", "-"], input="".join(f"{command}\n" for command in commands))


def _in(process: int, command: Sequence[str], **how: Any) -> None:
    done = subprocess.run([*within(process, Path("/")), *command], capture_output=True, text=True, **how)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
