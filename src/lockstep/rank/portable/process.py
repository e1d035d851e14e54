"""This process under numerics="portable": started with the variables, or started again with them, once; then torch's own switches."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from lockstep.errors import UsageError
from lockstep.machine.processes import interpreter
from lockstep.machine.torch_private import enable_onednn, functions, is_onednn_enabled
from lockstep.notices import say
from lockstep.protocol.portable import is_prepared, portable_variables, refuse_old_cpu
from lockstep.rank.caller import where
from lockstep.rank.portable.answers import refuse_wrong_answers
from lockstep.rank.portable.operators import refuse_uncovered

AGAIN = "LOCKSTEP_PORTABLE_AGAIN"
"""Set in a script that started itself again; it doesn't do so twice."""


def be_portable(threads: int, *, is_launched: bool, checks: bool) -> None:
    """Make this process compute what every CPU computes. Call before the first operation, where this CPU's kernels matter.

    Args:
        threads: the rank's.
        is_launched: whether a launcher of lockstep started this process; it can't start itself again then.
        checks: whether known answers are computed here; one rank of a machine does it for all.

    Raises:
        UsageError: where the bits would not be portable: with what differs, and the fix.
    """
    if not is_prepared(os.environ):
        _start_again(threads, is_launched=is_launched)
    library: Any = ctypes.CDLL(None)
    refuse_old_cpu(library)
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        raise UsageError(
            f'numerics="portable" knows how to hold MKL, and torch {torch.__version__} was built with another BLAS.',
            "Install torch from PyPI or from the index of its own site.",
        )
    library.lockstep_portable_set_threads(threads)
    torch.backends.nnpack.set_flags(False)  # type: ignore[no-untyped-call]
    _keep_lstm_out_of_onednn()
    if checks:
        refuse_wrong_answers()
    refuse_uncovered()


def _start_again(threads: int, *, is_launched: bool) -> None:
    """Replace this process by the same command with the variables; what the script did before runs again."""
    if is_launched or AGAIN in os.environ or not _has_command():
        raise UsageError(
            f'numerics="portable" must be known before torch is loaded ({where()}).',
            'Start it with `lockstep run --numerics portable`, or write numerics="portable" into the script\'s lockstep.init.',
        )
    variables = {**os.environ, **portable_variables(os.environ, threads), AGAIN: "1"}
    say('numerics="portable" is read while torch is loaded: the script starts again with it.')
    sys.stdout.flush()
    sys.stderr.flush()
    python = interpreter()
    os.execve(python, [python, *sys.orig_argv[1:]], variables)  # noqa: S606 - the command that the user has typed


def _has_command() -> bool:
    """Whether the command line of this process starts the script: not a prompt, a notebook, standard input, or another process's child."""
    file = str(getattr(sys.modules.get("__main__"), "__file__", None) or "<")
    is_own = multiprocessing.parent_process() is None and not sys.flags.interactive and not hasattr(sys, "ps1")
    return is_own and not file.startswith("<")


_kept_out: list[Callable[..., Any]] = []
"""torch's own functions that were replaced in this process."""


def _keep_lstm_out_of_onednn() -> None:
    """Torch's own LSTM instead of oneDNN's, which chooses by CPU whatever it is told."""
    if not _kept_out:
        places: list[Any] = [functions, torch]  # nn.LSTM looks in the first
        for module in places:
            _kept_out.append(module.lstm)
            module.lstm = _without_onednn(module.lstm)


def _without_onednn(function: Callable[..., Any]) -> Callable[..., Any]:
    def lstm(*args: Any, **named: Any) -> Any:
        # torch.backends.mkldnn.flags sets five more things, and warns of one of them.
        before = is_onednn_enabled()
        enable_onednn(False)
        try:
            return function(*args, **named)
        finally:
            enable_onednn(before)

    return lstm
