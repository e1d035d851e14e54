"""This process under numerics="portable": started with the variables, or started again with them, once; then torch's own switches."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from samebits.errors import EnvironmentFailure, UsageError
from samebits.machine.processes import interpreter
from samebits.machine.torch_private import enable_onednn, functions, is_onednn_enabled
from samebits.notices import say
from samebits.protocol.portable import KERNELS, changed_since, is_held, portable_variables, refuse_old_cpu
from samebits.rank.caller import where
from samebits.rank.portable.known_answers import refuse_wrong_answers
from samebits.rank.portable.operators import refuse_uncovered

AGAIN = "SAMEBITS_PORTABLE_AGAIN"
"""Set in a script that started itself again; it doesn't do so twice."""


def be_portable(threads: int, *, is_launched: bool, checks: bool) -> None:
    """Make this process compute what every CPU computes. Call before the first operation, where this CPU's kernels matter.

    Args:
        threads: the rank's.
        is_launched: whether a launcher of samebits started this process; it can't start itself again then.
        checks: whether known answers are computed here; one rank of a machine does it for all.

    Raises:
        UsageError: where the bits would not be portable: with what differs, and the fix.
    """
    if not is_held(_at_start()):
        _start_again(is_launched=is_launched)
    if changed := changed_since(_at_start(), os.environ):
        raise UsageError(
            f'{", ".join(changed)} changed in the script, and numerics="portable" needs what it was started with.',
            "Leave it as it is.",
        )
    library: Any = ctypes.CDLL(None)
    refuse_old_cpu(library)
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        raise UsageError(
            f'numerics="portable" knows how to hold MKL, and torch {torch.__version__} was built with another BLAS.',
            "Install torch from PyPI or from the index of its own site.",
        )
    library.samebits_portable_kernels.restype = ctypes.c_char_p
    if (kernels := library.samebits_portable_kernels().decode()) != KERNELS:
        raise EnvironmentFailure(f"OpenBLAS uses its kernels of {kernels}, not of {KERNELS}, whatever it was told.")
    hold()
    if checks:
        library.samebits_portable_set_threads(1)  # the recorded answers are those of one
        refuse_wrong_answers()
    library.samebits_portable_set_threads(threads)


def hold() -> None:
    """What a process that was started with the variables still has to do; a second call does nothing."""
    if not _kept_out:
        torch.backends.nnpack.set_flags(False)  # type: ignore[no-untyped-call]
        _keep_lstm_out_of_onednn()
        refuse_uncovered()


def say_held_for_nothing() -> None:
    """Say it, where a process was started for numerics="portable" and the script chose another one."""
    if is_held(_at_start()):
        say(
            'the source names numerics="portable", so this process was started with kernels that every CPU has, and without '
            "torch.compile; the script chose other numerics. Its bits are those of this process: --numerics exact leaves the CPU's own."
        )


def _at_start() -> dict[str, str]:
    """The environment with which this process was started, or the one that it was forked from: what torch saw when it was loaded."""
    text = b""
    with suppress(OSError):
        text = Path("/proc/self/environ").read_bytes()
    return dict(os.fsdecode(word).split("=", 1) for word in text.split(b"\0") if b"=" in word)


def _start_again(*, is_launched: bool) -> None:
    """Replace this process by the same command with the variables; what the script did before runs again."""
    if is_launched or AGAIN in os.environ or not _has_command():
        raise UsageError(
            f'numerics="portable" must be known before torch is loaded ({where()}).',
            'Start it with `samebits run --numerics portable`, or write numerics="portable" into the script\'s samebits.init.',
        )
    variables = {**os.environ, **portable_variables(os.environ), AGAIN: "1"}
    say('numerics="portable" is read while torch is loaded: the script starts again with it.')
    sys.stdout.flush()
    sys.stderr.flush()
    python = interpreter()
    os.execve(python, [python, *sys.orig_argv[1:]], variables)  # noqa: S606 - the command that the user has typed


def _has_command() -> bool:
    """Whether the command line of this process starts the script: no prompt, notebook, standard input, child, or test of pytest."""
    file = str(getattr(sys.modules.get("__main__"), "__file__", None) or "<")
    is_own = multiprocessing.parent_process() is None and not sys.flags.interactive and not hasattr(sys, "ps1")
    return is_own and not file.startswith("<") and "_pytest" not in sys.modules  # it has replaced the output


_kept_out: list[Callable[..., Any]] = []
"""torch's own functions that were replaced in this process."""


def _keep_lstm_out_of_onednn() -> None:
    """Torch's own LSTM instead of oneDNN's, which chooses by CPU whatever it is told."""
    places: list[Any] = [functions, torch]  # nn.LSTM looks in the first
    for module in places:
        _kept_out.append(module.lstm)
        module.lstm = _without_onednn(module.lstm)


_switch = threading.Lock()
_inside: list[bool] = []
"""An entry for each LSTM that is being computed: whether oneDNN was on before."""


def _without_onednn(function: Callable[..., Any]) -> Callable[..., Any]:
    # [Note: LSTMs in several threads]
    # The switch is the process's. The first one in turns oneDNN off and the last one out turns it on again; what other threads
    # compute meanwhile goes without it. torch has no switch for a thread.
    def lstm(*args: Any, **named: Any) -> Any:
        with _switch:
            _inside.append(is_onednn_enabled() if not _inside else _inside[0])
            enable_onednn(False)
        try:
            return function(*args, **named)
        finally:
            with _switch:
                was_on = _inside.pop()
                if not _inside:
                    enable_onednn(was_on)

    return lstm
