"""Exact numerics that a script's own lines would undo: tutorials switch on what is fast, and share cores among ranks.

Looked at when a step or an evaluation begins; what a script changes inside one counts until its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.machine.torch_private import if_imported
from lockstep.notices import say
from lockstep.rank.init.numerics import set_compiler


@dataclass(frozen=True)
class _Setting:
    name: str
    """The script's line; {0} is what it says."""
    wanted: Any
    look: Callable[[], Any]
    put: Callable[[Any], object]
    why: str
    """{0} is what it was set to, {1} what it is set back to."""


class KeptNumerics:
    """What `set_numerics` set, for as long as the run lasts.

    Args:
        threads: of this rank.
        exact: whether anything is kept at all.
    """

    def __init__(self, threads: int, *, exact: bool) -> None:
        self._settings = _settings(threads) if exact else ()
        self._said: set[str] = set()

    def keep(self) -> None:
        """Set back what the script has changed, and say so, once for each setting."""
        if self._settings:
            set_compiler()
        for setting in self._settings:
            found = setting.look()
            if found == setting.wanted:
                continue
            setting.put(setting.wanted)
            if setting.name not in self._said:
                self._said.add(setting.name)
                say(f"{setting.name.format(found)} in the script is taken back: {setting.why.format(found)}")


def _stance() -> str:
    """The compiler's stance if it depends on what came first; those that do not count as the default."""
    frames = if_imported("compiler_stance")
    found: str = frames._stance.stance if frames is not None else "default"  # noqa: SLF001 - torch has no name for it
    return "default" if found in ("force_eager", "fail_on_recompile") else found


def _settings(threads: int) -> tuple[_Setting, ...]:
    cudnn = torch.backends.cudnn
    return (
        _Setting(
            "torch.set_num_threads({0})",
            threads,
            torch.get_num_threads,
            torch.set_num_threads,
            f"threads change bits, and this run has {threads}. Write lockstep.init(threads={{0}}), or --threads {{0}}, for more.",
        ),
        _Setting(
            "torch.backends.cudnn.benchmark = {0}",
            False,
            lambda: cudnn.benchmark,
            lambda value: setattr(cudnn, "benchmark", value),
            'it chooses kernels by timing. numerics="fast" allows that.',
        ),
        _Setting(
            "torch.backends.cudnn.deterministic = {0}",
            True,
            lambda: cudnn.deterministic,
            lambda value: setattr(cudnn, "deterministic", value),
            'the bits would differ from run to run. numerics="fast" allows that.',
        ),
        _Setting(
            "torch.set_deterministic_debug_mode({0}), or what does the same,",
            2,
            torch.get_deterministic_debug_mode,
            torch.set_deterministic_debug_mode,
            "operations without a deterministic form must raise. `allow=` lets single ones through.",
        ),
        _Setting(
            "suppress_errors = {0} for torch.compile",
            False,
            lambda: getattr(if_imported("compiler_settings"), "suppress_errors", False),
            lambda value: setattr(if_imported("compiler_settings"), "suppress_errors", value),
            "a rank on which a compilation fails would go on without the compiler, with other bits.",
        ),
        _Setting(
            "torch.compiler.set_stance({0!r})",
            "default",
            _stance,
            torch.compiler.set_stance,
            "which lanes are computed without the compiler would depend on the number of ranks.",
        ),
    )
