"""torchrun's options, in both spellings, for `samebits run`: a torchrun command line works unchanged.

Those with a meaning on one node are ordinary options of `run`. Those about several nodes say where this one is; on one
node they, and all others, are accepted here and named once. As in torchrun, a variable PET_NAME takes the place of
`--name` where that is not given; for options about nodes a launcher's word is looked at first (`samebits.launcher.nodes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from samebits.errors import UsageError

if TYPE_CHECKING:
    from samebits.launcher.nodes.place import NodePlace

Function = TypeVar("Function", bound=Callable[..., Any])

NODE_OPTIONS = {
    "--node-rank": ("N", "The number of this node. [default: a launcher's, else by itself]"),
    "--rdzv-endpoint": ("HOST[:PORT]", "Where the first node is."),
    "--rdzv-id": ("NAME", "The job, where several meet at one host."),
    "--rdzv-conf": ("KEY=VALUE,...", "join_timeout=60: how long missing nodes are waited for. [default: 600 s]"),
    "--rdzv-backend": ("NAME", "static, c10d or samebits: all mean the same."),
    "--local-addr": ("ADDRESS", "This node's own address or interface, where it has several."),
    "--master-addr": ("HOST", "The endpoint's host, as torchrun calls it."),
    "--master-port": ("PORT", "Its port."),
}
"""Each with its value and what it says."""
WITH_VALUE = (
    "--monitor-interval",
    "--event-log-handler",
    "--role",
    "--logs-specs",
    "--numa-binding",
    "--signals-to-handle",
    "--shutdown-timeout",
    "--local-ranks-filter",
    "--duplicate-stdout-filters",
    "--duplicate-stderr-filters",
)
SWITCHES = ("--standalone", "--run-path", "--virtual-local-rank")
SHORT = {"--redirects": "-r", "--tee": "-t"}
REFUSED = {
    "--no_python": (
        "--no-python starts programs that are not Python, which this version cannot do.",
        "Give the Python script.",
    ),
    "--virtual_local_rank": (
        "--virtual-local-rank hides the other GPUs from a rank, which this version does not do.",
        "Leave it out: each rank gets cuda:LOCAL_RANK.",
    ),
}
"""Options that would change what the script does if they were silently ignored, with the problem and the fix."""


def spellings(option: str) -> tuple[str, ...]:
    """`--node-rank` and `--node_rank`."""
    return tuple(dict.fromkeys((option, "--" + option[2:].replace("-", "_"))))


def variable(option: str) -> str:
    """The variable that torchrun reads where an option is not given: PET_NODE_RANK for `--node-rank`."""
    return f"PET_{option[2:].replace('-', '_').upper()}"


def accept_torchrun_options(function: Function) -> Function:
    """A decorator for a click command: the options without meaning on one node arrive in its keyword arguments."""
    for option, (value, text) in NODE_OPTIONS.items():
        function = click.option(*spellings(option), default=None, metavar=value, help=text)(function)
    for option in WITH_VALUE:
        function = click.option(*spellings(option), envvar=variable(option), default=None, hidden=True)(function)
    for option, short in SHORT.items():
        function = click.option(short, option, envvar=variable(option), default=None, hidden=True)(function)
    for option in (*SWITCHES, "--no-python"):
        function = click.option(*spellings(option), envvar=variable(option), is_flag=True, hidden=True)(function)
    return function


def place_from(nnodes: str | None, given: Mapping[str, Any], variables: Mapping[str, str], script: str) -> NodePlace:
    """Where this node is.

    Args:
        nnodes: --nnodes as given on the command line.
        given: the other options that `accept_torchrun_options` adds.
        variables: the environment, where launchers say it too.
        script: SCRIPT as given, for corrected commands.

    Raises:
        UsageError: for what cannot be.
    """
    words: dict[str, Any] = {_field(option): given.get(_field(option)) for option in NODE_OPTIONS}
    from samebits.launcher.nodes.place import Options, choose_place

    return choose_place(Options(nnodes=nnodes, standalone=bool(given.get("standalone")), **words), variables, script)


def _field(option: str) -> str:
    return option[2:].replace("-", "_")


def without_meaning(given: Mapping[str, Any], *, on_one_node: bool = True) -> list[str]:
    """The given options that change nothing, by name.

    Raises:
        UsageError: for one that would change what the script does if it were ignored.
    """
    names = [name for name, value in given.items() if value not in (None, False)]
    for name in names:
        if f"--{name}" in REFUSED:
            raise UsageError(*REFUSED[f"--{name}"])
    if (specs := given.get("logs_specs")) not in (None, "", "default"):
        raise UsageError(
            f"--logs-specs {specs} asks for a torchrun log plugin, which this version does not load.",
            "Leave it out: each rank's log is in the run folder, under logs/.",
        )
    useful = set() if on_one_node else {_field(option) for option in NODE_OPTIONS}
    return [f"--{name.replace('_', '-')}" for name in names if name not in useful]
