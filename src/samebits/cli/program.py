"""The program that a command runs, checked before anything starts, and the machine that it runs on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from samebits.cli.script_words import check_module, check_python, is_module_here
from samebits.cli.shared_options import arithmetic_from
from samebits.errors import UsageError
from samebits.launcher.sizing import Machine, Wish, size
from samebits.launcher.terminal.report import Line
from samebits.launcher.terminal.terminal import Console, Terminal
from samebits.launcher.trials.trials import Program
from samebits.machine.cores import usable_cores
from samebits.machine.gpus import usable_gpus
from samebits.machine.no_gpu import NO_GPU, why_none
from samebits.machine.processes import open_file_limit
from samebits.machine.regular_file import other_kind
from samebits.machine.visible import visible
from samebits.protocol.installation import not_installed
from samebits.protocol.late_settings import ranks_per_gpu
from samebits.protocol.layout.mesh import Form


def check_program(script: str, is_module: bool, command: str) -> None:
    """Raise `UsageError` when there is no such script or module, or it is not Python; `command` is named in the fix."""
    check_here()
    try:
        if is_module:
            check_module(script)
        else:
            _check_script(script, command)
    except OSError as error:
        # The name is too long for a file, or the folder may not be entered.
        raise UsageError(f"{visible(script)} cannot be read: {error.strerror}.", "Check the path.") from None


def _check_script(script: str, command: str) -> None:
    path, kind, name = Path(script), other_kind(script), visible(script)
    if kind == "a folder":
        raise UsageError(f"{name} is a folder.", "Give the script in it, or -m for a package.")
    if kind:
        raise UsageError(f"{name} is {kind}, not a script that every rank can read.", "Write it to a file.")
    if not path.is_file():
        near = get_close_matches(path.name, [one.name for one in path.parent.glob("*.py")], 1, 0.8)
        fix = f"Did you mean {visible(str(path.parent / near[0]))}?" if near else "Check the path."
        fix = f"Put -m before a module: samebits {command} -m {name}." if is_module_here(script) else fix
        raise UsageError(f"There is no script {name}.", fix)
    if not os.access(path, os.R_OK):
        raise UsageError(f"The script {name} cannot be read.", "Check its permissions.")
    check_python(path)


def check_here() -> None:
    """Raise `UsageError` where no rank could start: torch is not installed, or the working directory was removed."""
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"The folder in which this command was started cannot be used: {error.strerror}.",
            "Change to one that exists: it may have been removed.",
        ) from None
    # [Note: torch is missed before a rank starts]
    # Fresh ranks import torch themselves, each would fail with a traceback. Looking for torch imports nothing.
    if "torch" not in sys.modules and find_spec("torch") is None:
        raise not_installed("torch")


def machine_for(device: str, *, is_quiet: bool) -> Machine:
    """Cores, the GPUs that the installed torch can use (none for `device` "cpu"), and OMP_NUM_THREADS.

    Where the device is left to samebits and a GPU of the machine cannot be used, this says so, unless it is to be quiet.
    """
    gpus = usable_gpus(os.environ) if device != "cpu" else 0
    no_gpu = why_none(os.environ) if not gpus and device != "cpu" else NO_GPU
    if device == "auto" and no_gpu.note and not is_quiet:
        Console(Terminal(os.environ)).line(Line("note", no_gpu.note))
    omp_threads, share = os.environ.get("OMP_NUM_THREADS"), ranks_per_gpu(os.environ)
    return Machine(usable_cores(), gpus, omp_threads, open_file_limit(), no_gpu, share)


def program_from(options: Mapping[str, Any], most_ranks: int, machine: Machine, form: Form | None = None) -> Program:
    """The program, with the same number of threads in all runs: what `most_ranks` ranks get.

    Raises:
        UsageError: when this machine cannot meet the options.
    """
    sized = size(Wish(str(most_ranks), options["device"], None, options["threads"]), machine)
    return Program(
        script=None if options["module"] else Path(options["script"]),
        module=options["script"] if options["module"] else None,
        args=tuple(options["args"]),
        threads=sized.threads,
        threads_given=options["threads"] is not None,
        device=sized.device,
        device_given=sized.device_given,
        form=form or Form(),
        arithmetic=arithmetic_from(options),
    )
