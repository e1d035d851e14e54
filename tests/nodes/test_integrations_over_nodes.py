"""Accelerate's and the Trainer's scripts on two hosts with two processes each: the bits of one process, under three launchers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.ranks.integrations import test_accelerate, test_trainer
from tests.support.hosts import Host, network, why_not
from tests.support.launching import run_script, write_script
from tests.support.several_nodes import write_key

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.thorough,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
PORT = "29500"
VARIABLES = {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "OPTIONS": "", "KIND": "gpt2"}
TOLD = re.compile(r"^(?:evaluated|weights|logged) .*", re.MULTILINE)  # no "weights" in lines of the launcher
SCRIPTS = {"accelerate": test_accelerate.TRAIN, "transformers": test_trainer.TRAIN}


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with network(2) as made:
        yield made


def launchers(which: str, hosts: Sequence[Host], place: Path, script: str) -> list[list[str]]:
    """The command on each host."""
    first, python = hosts[0].address, [sys.executable, "-m"]
    commands = {
        "samebits": ["samebits", "run", "-n", "2", "--nnodes", "2", "--rdzv-endpoint", f"{first}:{PORT}", "--key-file", str(write_key(place)), "--node-rank"],
        "torchrun": ["torch.distributed.run", "--nproc-per-node", "2", "--nnodes", "2", "--master-addr", first, "--master-port", PORT, "--node-rank"],
        "accelerate": ["accelerate.commands.launch", "--cpu", "--num_processes", "4", "--num_machines", "2", "--main_process_ip", first, "--main_process_port", PORT, "--machine_rank"],
    }  # fmt: skip
    return [[*python, *commands[which], str(node), script] for node in range(len(hosts))]


def ended_on(hosts: Sequence[Host], place: Path, which: str, text: str, **more: str) -> list[str]:
    """What process 0 printed."""
    agents = []
    script = str(place / write_script(place, text))
    for node, (host, command) in enumerate(zip(hosts, launchers(which, hosts, place, script), strict=True)):
        folder = place / f"{which}-{node}"
        folder.mkdir()
        with (folder / "said.txt").open("w") as said:
            variables = {**os.environ, **VARIABLES, **more}
            agents.append(host.start(command, folder, stdout=said, stderr=said, env=variables))
    codes = [agent.wait(120) for agent in agents]
    said = [(place / f"{which}-{node}" / "said.txt").read_text() for node in range(len(hosts))]
    assert codes == [0, 0], said
    return TOLD.findall(said[0])


@pytest.mark.parametrize("library", SCRIPTS)
@pytest.mark.parametrize("which", ["samebits", "torchrun", "accelerate"])
def test_two_hosts_have_the_bits_of_one_process(hosts: list[Host], tmp_path: Path, library: str, which: str) -> None:
    pytest.importorskip(library)
    (tmp_path / "alone").mkdir()
    alone = run_script(tmp_path / "alone", SCRIPTS[library], "-n", "1", env=VARIABLES)
    assert ended_on(hosts, tmp_path, which, SCRIPTS[library]) == TOLD.findall(alone.out)
