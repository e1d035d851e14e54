"""The option that lets the runs of `verify` and `bench` write where the script does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def accept_in_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --in-place to a command."""
    option = click.option(
        "--in-place",
        is_flag=True,
        help="Let runs write where the script writes. [default: they see copies of all files]",
    )
    return option(command)
