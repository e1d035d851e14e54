"""What this node has, as the commands that start runs ask for it."""

from __future__ import annotations

import os

from lockstep.launch.sizing import Machine
from lockstep.machine.cores import usable_cores
from lockstep.machine.gpus import count_gpus, torch_speaks_cuda
from lockstep.machine.processes import open_file_limit


def machine_for(device: str) -> Machine:
    """Cores, the GPUs that the installed torch can use (none for `device` "cpu"), and OMP_NUM_THREADS."""
    gpus = count_gpus(os.environ) if device != "cpu" else 0
    usable = gpus if gpus and torch_speaks_cuda() else 0
    return Machine(usable_cores(), usable, os.environ.get("OMP_NUM_THREADS"), open_file_limit())
