"""What tells this machine from others, its addresses, and the processes above this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from samebits.machine.this_machine import address_towards, ancestors, interface_with, machine_and_start, nearest


def test_a_machine_that_hides_its_start_is_told_by_its_name_the_same_every_time(tmp_path: Path) -> None:
    shown = tmp_path / "boot_id"
    shown.write_text("5d2e-one-start\n")
    assert machine_and_start(str(shown), "/nowhere") == "5d2e-one-start"
    number = tmp_path / "machine-id"
    number.write_text("0123\n")
    hidden = str(tmp_path / "none")
    assert machine_and_start(hidden, str(number)) == f"{os.uname().nodename} 0123"
    assert machine_and_start(hidden, hidden) == os.uname().nodename


def test_the_processes_above_are_told_the_nearest_first():
    found = list(ancestors(os.getpid()))
    assert found[0][0] == os.getppid()
    script = "from samebits.machine.this_machine import nearest; import sys; print(nearest([sys.argv[1]]))"
    name = next(iter(ancestors_of_child()))[1]
    done = subprocess.run([sys.executable, "-c", script, name], capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.getpid()
    assert nearest(["no such name"]) is None


def ancestors_of_child():
    with subprocess.Popen(["sleep", "60"]) as child:
        found = list(ancestors(child.pid))
        child.kill()
    assert found[0][0] == os.getpid()
    return found


def test_a_process_that_is_hidden_ends_the_list(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) b) c) S 5 7 7 0")
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "comm").write_text("mpirun\n")
    assert list(ancestors(7, tmp_path)) == [(5, "mpirun")]
    assert nearest({"mpirun"}, 7, tmp_path) == 5
    assert list(ancestors(8, tmp_path)) == []


def test_an_address_belongs_to_an_interface():
    assert address_towards("127.0.0.1", 1) == "127.0.0.1"
    assert interface_with("127.0.0.1") == "lo"
    assert interface_with("192.0.2.77") == ""
