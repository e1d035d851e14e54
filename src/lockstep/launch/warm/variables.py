"""Which environment variables a nursery that waits must have in common with the run that uses it: those that an import read.

What Python code reads while the modules are imported is seen: `seen_reads` watches `os.environ`. What C libraries read is
not, so variables of theirs count as read by their names. All others are set in the forked launcher.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

READ_BY_LIBRARIES = (
    "PYTHON", "_PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ", "HOME", "TMP", "TEMP", "USER", "LOGNAME",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NPY_", "NUMPY_", "DNNL_", "ONEDNN_", "VECLIB_",
    "TORCH", "PYTORCH", "C10_", "ATEN_", "AT_", "CUDA", "CUBLAS", "CUDNN", "NVIDIA_", "NVPL_", "NCCL_", "HIP_", "ROC",
    "HSA_", "GLOO_", "TRITON_", "KINETO_", "TQDM_", "COVERAGE_", "SETUPTOOLS_", "VIRTUAL_ENV", "CONDA", "SSL_", "OPENSSL_", "RDMAV_",
    "SLURM", "OMPI_", "PMI", "MV2_", "I_MPI_", "HYDRA_", "PALS_", "UCX_", "FI_", "LOCKSTEP_FAULTS", "LOCKSTEP_NURSERY",
)  # fmt: skip
"""How names begin that libraries below Python may have read. Those of batch systems are here because a run inside another of
their jobs, or task, is another run altogether."""
OF_TERMINALS = (
    "TERM", "COLUMNS", "LINES", "WINDOWID", "SSH_", "TMUX", "STY", "GPG_TTY", "VSCODE_", "XDG_SESSION", "DBUS_", "DISPLAY",
    "WAYLAND_", "WINDOW", "DESKTOP_", "GNOME_", "KONSOLE_", "VTE_", "ITERM", "COLORTERM", "KITTY", "ALACRITTY", "SHLVL",
    "PWD", "OLDPWD", "LOCKSTEP_",
)  # fmt: skip
"""How names begin that differ from terminal to terminal, and of our own, which are read when a run begins."""
HARMLESS_READERS = ("tqdm.",)
"""Modules that look through all variables for those of their own prefix, which is above."""


@dataclass(frozen=True)
class Reads:
    """What imports have read."""

    names: frozenset[str] = frozenset()
    everything: bool = False
    """Whether something read all variables at once, or ran before anybody watched."""


def hindrance(given: Mapping[str, str], wanted: Mapping[str, str], reads: Reads) -> str:
    """Why a nursery that was started with the variables `given` cannot serve a run with those `wanted`; empty: it can."""
    for name in sorted(given.keys() | wanted.keys()):
        if given.get(name) != wanted.get(name) and _is_read(name, reads):
            return f"the variable {name} has changed"
    return ""


def _is_read(name: str, reads: Reads) -> bool:
    if name.startswith(READ_BY_LIBRARIES) or name in reads.names:
        return True
    return reads.everything and name != "_" and not name.startswith(OF_TERMINALS)


class _Watched(dict[bytes, bytes]):
    """The dictionary behind `os.environ`, which notes who reads what."""

    def __init__(self, variables: Mapping[bytes, bytes]) -> None:
        super().__init__(variables)
        self.names: set[str] = set()
        self.everything = False

    def __getitem__(self, name: bytes) -> bytes:
        if not _in_an_iteration(sys._getframe(1)):  # noqa: SLF001
            self.names.add(os.fsdecode(name))
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[bytes]:
        reader = _outside(sys._getframe(1))  # noqa: SLF001
        if not reader.startswith(HARMLESS_READERS):
            self.everything = True
        return super().__iter__()


def _in_an_iteration(frame: FrameType | None) -> bool:
    """Whether `os.environ.items()` or the like asks, whose beginning has been noted."""
    while frame is not None and frame.f_globals.get("__name__") in {"os", "collections.abc", "_collections_abc"}:
        if frame.f_code.co_name == "__iter__":
            return True
        frame = frame.f_back
    return False


def _outside(frame: FrameType | None) -> str:
    while frame is not None and frame.f_globals.get("__name__") in {"os", "collections.abc", "_collections_abc"}:
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_globals.get('__name__', '')}."


@contextmanager
def seen_reads(before: Collection[str]) -> Iterator[list[Reads]]:
    """Watch `os.environ` inside; the list has its one entry afterwards.

    Args:
        before: modules that were imported before anybody watched. Those of Python itself read what `READ_BY_LIBRARIES` names.
    """
    told: list[Reads] = []
    environ, plain = os.environ, os.environ._data  # type: ignore[attr-defined]  # noqa: SLF001
    watched = _Watched(plain)
    environ._data = watched  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        yield told
    finally:
        environ._data = dict(dict.items(watched))  # type: ignore[attr-defined]  # noqa: SLF001
        unseen = any(is_foreign(name) for name in before)
        told.append(Reads(frozenset(watched.names), watched.everything or unseen))


OF_ENVIRONMENTS = ("lockstep", "__main__", "_virtualenv", "_distutils_hack", "__editable__", "_editable_impl_")
"""Modules that installers let Python load at its start; they read nothing but SETUPTOOLS_USE_DISTUTILS."""


def is_foreign(module: str) -> bool:
    """Whether a module is neither Python's, nor ours, nor of an environment."""
    return module.partition(".")[0] not in sys.stdlib_module_names and not module.startswith(OF_ENVIRONMENTS)
