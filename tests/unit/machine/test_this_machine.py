"""What tells this machine from others, also where the kernel's number is hidden."""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.machine.this_machine import machine_and_start


def test_a_machine_that_hides_its_start_is_told_by_its_name_the_same_every_time(tmp_path: Path) -> None:
    shown = tmp_path / "boot_id"
    shown.write_text("5d2e-one-start\n")
    assert machine_and_start(str(shown), "/nowhere") == "5d2e-one-start"
    number = tmp_path / "machine-id"
    number.write_text("0123\n")
    hidden = str(tmp_path / "none")
    assert machine_and_start(hidden, str(number)) == f"{os.uname().nodename} 0123"
    assert machine_and_start(hidden, hidden) == os.uname().nodename
