"""Options shared by the commands that start runs: the arithmetic, and how a model is laid out on ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from samebits.cli.completion import one_of
from samebits.protocol.arithmetic import NUMERICS, PRECISIONS, Arithmetic, allowed_named
from samebits.protocol.layout.mesh import SCHEDULES, STRATEGIES, Form, choose_mesh

VERIFIED_RANKS, VERIFIED_STEPS = "1,2,4", 20
"""What `verify` compares where nobody says it."""


def accept_arithmetic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --precision, --numerics and --allow to a command."""
    options = (
        click.option(
            "--precision",
            default=None,
            metavar="|".join(PRECISIONS),
            shell_complete=one_of(PRECISIONS),
            help="Dtype of forward passes. [default: the script's, else 32]",
        ),
        click.option(
            "--numerics",
            default=None,
            metavar="|".join(NUMERICS),
            shell_complete=one_of(NUMERICS),
            help="Fixed order and kernels, on any x86-64 CPU too (portable), or the backend's. [default: the script's, else exact]",
        ),
        click.option(
            "--allow",
            default="",
            metavar="OPERATOR,...",
            help="Operators of torch that may compute without a deterministic form: what passes through them is not exact.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def arithmetic_from(options: Mapping[str, Any]) -> Arithmetic:
    """Read the arithmetic from the options.

    Raises:
        UsageError: for an unknown name.
    """
    said = Arithmetic(options["precision"], options["numerics"], allowed_named(options.get("allow") or ()))
    said.decided()
    return said


def accept_form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --strategy, --mesh and --schedule to a command."""
    options = (
        click.option(
            "--strategy",
            default=None,
            metavar="NAME",
            shell_complete=one_of(STRATEGIES),
            help=f"One of {', '.join(STRATEGIES)}.",
        ),
        click.option(
            "--mesh",
            default=None,
            metavar="NAME=N,...",
            help="For example pipeline=2,ddp=2: 2 stages with 2 replicas each. The last name is the inner one: such ranks are "
            "neighbours, on one node.",
        ),
        click.option(
            "--schedule",
            default=None,
            metavar="|".join(SCHEDULES),
            shell_complete=one_of(SCHEDULES),
            help="Order of a pipeline's work.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def form_from(options: Mapping[str, Any]) -> Form:
    """Read the form from the options."""
    return Form(options["strategy"], options["mesh"], options["schedule"])


def check_form(form: Form, ranks: int, lanes: int | None, device: str) -> None:
    """Raise `UsageError`, before anything starts, when ranks, lanes or device ("cpu", "cuda") rule out the form."""
    if form.schedule and not (form.strategy or form.mesh):
        # The script may name the strategy.
        form = Form("pipeline", None, form.schedule)
    mesh = choose_mesh(form, ranks)
    mesh.check_device(device)
    if lanes is not None:
        mesh.check_lanes(lanes)


def accept_in_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --in-place to a command."""
    option = click.option(
        "--in-place",
        is_flag=True,
        help="Let runs write where the script writes. [default: they see copies of all files]",
    )
    return option(command)
