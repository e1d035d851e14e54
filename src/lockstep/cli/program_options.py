"""From the options that `verify` and `bench` share to the program that they run several times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.cli.arithmetic_options import arithmetic_from
from lockstep.launch.sizing import Machine, Wish, size
from lockstep.layout.mesh import Form
from lockstep.trials.trials import Program


def program_from(options: Mapping[str, Any], most_ranks: int, machine: Machine, form: Form | None = None) -> Program:
    """The program, with one number of threads for all runs: what `most_ranks` ranks get.

    Raises:
        UsageError: when the options cannot be true on this machine.
    """
    sized = size(Wish(str(most_ranks), options["device"], None, options["threads"]), machine)
    return Program(
        script=None if options["module"] else Path(options["script"]),
        module=options["script"] if options["module"] else None,
        args=tuple(options["args"]),
        threads=sized.threads,
        threads_given=options["threads"] is not None,
        device=sized.device,
        form=form or Form(),
        arithmetic=arithmetic_from(options),
    )
