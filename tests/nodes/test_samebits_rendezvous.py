"""`torchrun --rdzv-backend=samebits`: what it restarts, lets in and loses, and on which sockets it listens, beside torchrun's own."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.support.launching import MARK, kill, marked_processes, open_ports, until, write_script

pytestmark = [pytest.mark.ranks, pytest.mark.thorough]
SCRIPT = """
    import os, sys, time, torch, torch.distributed as dist
    from pathlib import Path

    dist.init_process_group("gloo")
    rank, restart = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    place = f"group {os.environ['GROUP_RANK']} of {os.environ['GROUP_WORLD_SIZE']}"
    print(f"UP rank {rank} of {dist.get_world_size()} {place} pid {os.getpid()} restart {restart}", flush=True)
    one = torch.ones(1)
    while True:
        dist.all_reduce(one.fill_(1.0))
        stop = torch.tensor([float(Path(sys.argv[1]).exists())])
        dist.all_reduce(stop)
        if stop.item():
            break
        time.sleep(0.02)
    print(f"DONE rank {rank} sum {int(one.item())}", flush=True)
    dist.destroy_process_group()
"""


class Torchruns:
    """Those of one run, each with the rendezvous of samebits, and two ranks."""

    def __init__(self, place: Path, nnodes: str, backend: str = "samebits") -> None:
        self.place, self.nnodes, self.backend = place, nnodes, backend
        self.mark, self.script = uuid.uuid4().hex, write_script(place, SCRIPT)
        self.all: list[subprocess.Popen[bytes]] = []
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        path = [*_visible(place), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.variables = {
            **os.environ,
            MARK: self.mark,
            "SAMEBITS_KEY": secrets.token_hex(32),
            "PYTHONPATH": os.pathsep.join(path),
        }

    def start(self) -> subprocess.Popen[bytes]:
        """One more node."""
        words = [
            "--nnodes",
            self.nnodes,
            "--nproc-per-node",
            "2",
            "--rdzv-backend",
            self.backend,
            "--max-restarts",
            "3",
        ]
        words += ["--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "job"]
        if self.backend == "c10d":
            words += ["--local-addr", "127.0.0.1"]
        command = [sys.executable, "-m", "torch.distributed.run", *words, self.script, str(self.place / "stop")]
        with (self.place / f"said-{len(self.all)}.txt").open("wb") as said:
            process = subprocess.Popen(command, cwd=self.place, env=self.variables, stdout=said, stderr=said)
        self.all.append(process)
        return process

    @property
    def out(self) -> str:
        return "".join(path.read_text() for path in sorted(self.place.glob("said-*.txt")))

    def up(self, ranks: int) -> list[str]:
        """The newest start of ranks on so many of them; `rank` to `restart`, once all are up."""
        found: list[str] = []

        def are_there() -> bool:
            found[:] = re.findall(rf"UP (rank \d+ of {ranks} .*)", self.out)
            return len({line.split(" of ")[0] for line in found}) == ranks

        until(are_there, f"{ranks} ranks:\n{self.out}")
        return found

    def finish(self) -> list[int]:
        """Let the script end, and wait for the exit codes."""
        (self.place / "stop").touch()
        return [process.wait(60) for process in self.all]

    def end(self) -> None:
        for process in self.all:
            process.kill()
            process.wait(60)
        for process in marked_processes(self.mark):
            kill(process)
        until(lambda: not marked_processes(self.mark), "the end of all processes")


def _visible(place: Path) -> list[str]:
    """A folder in which torchrun finds the entry point of this checkout, if it is not installed."""
    if any(one.name == "samebits" for one in entry_points(group="torchrun.handlers")):
        return []
    told = place / "site" / "samebits_here-0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: samebits-here\nVersion: 0\n")
    (told / "entry_points.txt").write_text("[torchrun.handlers]\nsamebits = samebits.torchrun_rendezvous:get_handler\n")
    return [str(told.parent)]


@pytest.fixture
def torchruns(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Torchruns]:
    made = Torchruns(tmp_path, *request.param)
    yield made
    made.end()


@pytest.mark.parametrize("torchruns", [("2",)], indirect=True)
def test_a_killed_rank_needs_one_restart_and_sockets_have_named_addresses(torchruns: Torchruns) -> None:
    torchruns.start(), torchruns.start()
    first = torchruns.up(4)
    assert sorted(line.split(" pid ")[0] for line in first) == [
        "rank 0 of 4 group 0 of 2",
        "rank 1 of 4 group 0 of 2",
        "rank 2 of 4 group 1 of 2",
        "rank 3 of 4 group 1 of 2",
    ]
    assert listening(torchruns) == {"127.0.0.1"}
    kill(int(re.findall(r"rank 3 .* pid (\d+)", torchruns.out)[0]))
    until(lambda: torchruns.out.count("UP ") == 8, f"all ranks again:\n{torchruns.out}")
    assert torchruns.finish() == [0, 0], torchruns.out
    assert sorted(re.findall(r"DONE rank (\d) sum (\d)", torchruns.out)) == [(str(rank), "4") for rank in range(4)]
    assert torchruns.out.count("UP ") == 8, "one restart of all"


@pytest.mark.parametrize("torchruns", [("1:2",)], indirect=True)
def test_a_node_joins_and_is_lost_while_the_run_goes_on(torchruns: Torchruns) -> None:
    torchruns.start()
    torchruns.up(2)
    second = torchruns.start()
    torchruns.up(4)
    second.send_signal(signal.SIGKILL)
    until(lambda: len(re.findall(r"UP rank \d of 2 ", torchruns.out)) == 4, f"two ranks again:\n{torchruns.out}")
    assert torchruns.finish() == [0, -signal.SIGKILL], torchruns.out
    assert sorted(re.findall(r"DONE rank (\d) sum (\d)", torchruns.out)) == [("0", "2"), ("1", "2")]


@pytest.mark.parametrize("torchruns", [("2", "c10d")], indirect=True)
def test_torchruns_own_rendezvous_listens_on_all_addresses(torchruns: Torchruns) -> None:
    torchruns.start(), torchruns.start()
    torchruns.up(4)
    assert "*" in listening(torchruns), "the reason for another one; when this fails, the pages that say so are wrong"


def listening(torchruns: Torchruns) -> set[str]:
    """The addresses on which its processes accept connections; `*` is every one."""
    names = {"0100007F": "127.0.0.1", "00000000": "*", "0" * 32: "*", "0000000000000000FFFF00000100007F": "127.0.0.1"}
    ports = open_ports(marked_processes(torchruns.mark))
    return {names.get(address := port.split()[1].split(":")[0], address) for port in ports}
