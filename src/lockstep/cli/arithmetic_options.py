"""The options that say in which arithmetic to compute, shared by the commands that start runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from lockstep.handover.arithmetic import NUMERICS, PRECISIONS, Arithmetic


def accept_arithmetic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --precision and --numerics to a command."""
    options = (
        click.option(
            "--precision",
            default=None,
            metavar="|".join(PRECISIONS),
            help="In which dtype forward passes compute. [default: the script's, else 32]",
        ),
        click.option(
            "--numerics",
            default=None,
            metavar="|".join(NUMERICS),
            help="Fixed order and kernels, or the backend's. [default: the script's, else exact]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def arithmetic_from(options: Mapping[str, Any]) -> Arithmetic:
    """What the options say.

    Raises:
        UsageError: for a name that is none.
    """
    said = Arithmetic(options["precision"], options["numerics"])
    said.decided()
    return said
