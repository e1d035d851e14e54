"""What holds torch's arithmetic on every x86-64 CPU, under numerics="portable": variables that are read while torch is loaded.

One of them, LD_PRELOAD, puts `samebits/_portable.so` between torch and MKL (native/portable). The launcher starts processes with
these variables; a script that nobody launched starts itself again with them (`rank.portable.process`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from samebits.errors import EnvironmentFailure, UsageError
from samebits.protocol.installation import to_install

LIBRARY = Path(__file__).parents[1] / "_portable.so"
BLAS = "SAMEBITS_PORTABLE_BLAS"
"""Where OpenBLAS is; native/portable/blas.cpp reads it."""
PRELOAD = "LD_PRELOAD"
OPENBLAS, OPENBLAS_VERSION = "scipy-openblas32", "0.3.34.481.3"
"""The exact build: another one may cut matrices into other blocks."""
INSTALL = f"Run {to_install('portable')}."

KERNELS = "Haswell"
"""OpenBLAS's name for the kernels that it is held at."""
HELD = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": KERNELS,
    "OPENBLAS_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}
"""Whatever the user has set. torch.compile compiles for the CPU that it finds, so functions run without it. The one thread of OpenBLAS
is NumPy's, whose products would depend on the machine's cores; torch's gets the rank's number later."""
NUMPY = "NPY_DISABLE_CPU_FEATURES"
NUMPY_FEATURES = {
    True: "X86_V4,AVX512_ICL,AVX512_SPR",
    False: "AVX512F,AVX512CD,AVX512_SKX,AVX512_CLX,AVX512_CNL,AVX512_ICL",
}
"""What NumPy must not use beyond AVX2, by whether it has the names of NumPy 2.4."""


def portable_variables(present: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process needs before it loads torch.

    Args:
        present: its environment without them.

    Raises:
        UsageError: where this machine or this installation cannot have the portable bits.
    """
    _check_machine()
    others = [one for one in present.get(PRELOAD, "").split(":") if one and one != str(LIBRARY)]
    return {
        **HELD,
        BLAS: str(_openblas()),
        NUMPY: NUMPY_FEATURES[_version("numpy") >= (2, 4)],
        # What stands first wins, so what others preload (an allocator) stays as it is.
        PRELOAD: ":".join([str(LIBRARY), *others]),
    }


def is_held(at_start: Mapping[str, str]) -> bool:
    """Whether this process was started with the variables; then its library is before torch."""
    library = ctypes.CDLL(None)
    return hasattr(library, "samebits_portable_version") and HELD.items() <= at_start.items()


def changed_since(at_start: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The variables that have another value now, which a library loaded later would see."""
    return [name for name in (*HELD, BLAS, NUMPY) if at_start.get(name) != now.get(name)]


def _check_machine() -> None:
    if platform.system() != "Linux" or platform.machine() not in {"x86_64", "AMD64"}:
        raise UsageError(
            f'numerics="portable" is for Linux on x86-64, and this is {platform.system()} on {platform.machine()}.',
            'Use numerics="exact": the same bits on machines of one kind.',
        )
    if not LIBRARY.is_file():
        raise UsageError(
            'numerics="portable" needs the compiled part of samebits, which this installation does not have.',
            "Install a wheel, or with a C++ compiler.",
        )
    if any(sign in str(LIBRARY) for sign in " :"):
        raise UsageError(
            f'numerics="portable" preloads {LIBRARY}, and a path with a space or colon cannot be preloaded.',
            "Install samebits in another folder.",
        )
    refuse_old_cpu(ctypes.CDLL(str(LIBRARY)))


def refuse_old_cpu(library: ctypes.CDLL) -> None:
    """Raise `UsageError` where the CPU lacks what all kernels use; `library` is `_portable.so`."""
    library.samebits_portable_lacks.restype = ctypes.c_char_p
    if lacks := library.samebits_portable_lacks().decode():
        raise UsageError(
            f'numerics="portable" needs a CPU with AVX2 and FMA, and this one has no {lacks}.',
            'Use numerics="exact": the same bits on machines of one kind.',
        )


def _openblas() -> Path:
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        raise UsageError(f'numerics="portable" needs {OPENBLAS}, which is not installed.', INSTALL)
    if (found := metadata.version(OPENBLAS)) != OPENBLAS_VERSION:
        raise UsageError(
            f'numerics="portable" needs {OPENBLAS} {OPENBLAS_VERSION} exactly, but {found} is installed.', INSTALL
        )
    path = Path(spec.origin).parent / "lib" / "libscipy_openblas.so"
    if not path.is_file():
        raise EnvironmentFailure(f"{OPENBLAS} is installed without {path}. Install it again.")
    return path


def _version(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version(package).split(".")[:2])


def main() -> None:
    """Print the variables, for `env $(python -m samebits.protocol.portable) jupyter lab`: a process that samebits does not start."""
    print(*(f"{name}={value}" for name, value in portable_variables(os.environ).items()))


if __name__ == "__main__":
    main()
