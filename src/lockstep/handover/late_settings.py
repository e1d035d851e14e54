"""Settings that a script makes before its own `import torch`, which come too late when the rank was forked after it.

The rank's start remembers the environment; `lockstep.init` compares. Nothing is remembered in a fresh interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "TORCHDYNAMO_", "LD_PRELOAD")
"""Variables that libraries read once, while loading."""

HARMLESS = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
"""Set by libraries themselves while they are imported (scikit-learn's threadpoolctl), for later imports."""

_at_start: dict[str, str] | None = None


def remember(variables: Mapping[str, str]) -> None:
    """Remember the variables with which torch is already imported."""
    global _at_start  # noqa: PLW0603 - a process has one environment
    _at_start = _settings(variables)


def came_too_late(variables: Mapping[str, str]) -> list[str]:
    """The variables that changed since `remember`; none when it was not called."""
    if _at_start is None:
        return []
    now = _settings(variables)
    return sorted(name for name in now.keys() | _at_start.keys() if now.get(name) != _at_start.get(name))


def _settings(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(PREFIXES) and name not in HARMLESS}
