"""Read the machine and run every check; the report is a list of rows."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping

from lockstep.checkup.hardware import core_rows, device_row, driver_row, open_files_row
from lockstep.checkup.report import Report
from lockstep.checkup.software import addresses_row, backend_row, compiled_row, names_row, version_rows
from lockstep.checkup.surroundings import (
    folder_row,
    leftover_row,
    loopback_row,
    private_files_row,
    read_folder,
    read_shared_memory,
    shared_memory_row,
    stacks_row,
    try_loopback,
    try_view,
)
from lockstep.checkup.torch_facts import ask_torch
from lockstep.handover.run_folder import runs_folder
from lockstep.launch.sizing import Machine
from lockstep.machine.cores import usable_cores
from lockstep.machine.driver import read_driver
from lockstep.machine.gpus import count_gpus
from lockstep.machine.leftovers import left_folders, orphaned_processes, orphaned_shared_memory
from lockstep.machine.processes import address_limit
from lockstep.machine.stacks import refusal


def examine(variables: Mapping[str, str], version: str) -> Report:
    """Look at everything; takes about as long as importing torch.

    Args:
        variables: the environment.
        version: lockstep's.
    """
    facts = ask_torch(variables)
    gpus = count_gpus(variables)
    usable = gpus if facts.built_for else 0
    machine = Machine(usable_cores(), usable, variables.get("OMP_NUM_THREADS"))
    base = runs_folder(variables)
    rows = [
        *version_rows(sys.version_info[:3], version, facts, address_limit()),
        addresses_row(facts, address_limit()),
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
        stacks_row(refusal()),
        leftover_row(orphaned_processes(), orphaned_shared_memory(), left_folders()),
    ]
    return Report(tuple(rows), facts)
