"""Reads the machine and asks every check; the report is a list of rows."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.checkup.backends import backend_row, compiled_row
from lockstep.checkup.cores import core_rows
from lockstep.checkup.devices import device_row
from lockstep.checkup.driver import driver_row, read_driver
from lockstep.checkup.leftovers import leftover_row
from lockstep.checkup.limits import open_files_row
from lockstep.checkup.places import folder_row, loopback_row, read_folder, try_loopback
from lockstep.checkup.private_files import private_files_row, try_view
from lockstep.checkup.row import Row, State
from lockstep.checkup.shared_memory import read_shared_memory, shared_memory_row
from lockstep.checkup.torch_facts import TorchFacts, ask_torch
from lockstep.checkup.versions import names_row, version_rows
from lockstep.launch.folder import DEFAULT_BASE
from lockstep.launch.sizing import Machine
from lockstep.machine.cores import usable_cores
from lockstep.machine.gpus import count_gpus
from lockstep.machine.leftovers import orphaned_processes, orphaned_shared_memory


@dataclass(frozen=True)
class Report:
    """All rows, and what torch said."""

    rows: tuple[Row, ...]
    facts: TorchFacts

    @property
    def healthy(self) -> bool:
        """Whether nothing would keep a run from working."""
        return all(row.state is not State.PROBLEM for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"ok": self.healthy, "rows": [asdict(row) for row in self.rows], "torch": asdict(self.facts)}


def examine(variables: Mapping[str, str], version: str) -> Report:
    """Look at everything; about as long as importing torch takes.

    Args:
        variables: the environment.
        version: lockstep's.
    """
    facts = ask_torch(variables)
    gpus = count_gpus(variables)
    usable = gpus if facts.built_for else 0
    machine = Machine(usable_cores(), usable, variables.get("OMP_NUM_THREADS"))
    base = Path(variables.get("LOCKSTEP_RUNS") or DEFAULT_BASE)
    rows = [
        *version_rows(sys.version_info[:3], version, facts),
        names_row(facts),
        driver_row(read_driver(), gpus, facts),
        device_row(facts.devices, gpus, count_gpus({}), variables.get("CUDA_VISIBLE_DEVICES")),
        *core_rows(machine, len(os.sched_getaffinity(0))),
        backend_row(facts),
        compiled_row(facts),
        shared_memory_row(*read_shared_memory()),
        open_files_row(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        loopback_row(try_loopback()),
        folder_row(base, *read_folder(base)),
        private_files_row(try_view()),
        leftover_row(orphaned_processes(), orphaned_shared_memory()),
    ]
    return Report(tuple(rows), facts)
