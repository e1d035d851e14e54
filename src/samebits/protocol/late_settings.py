"""Settings that a script makes too late, before its own `import torch`; cuBLAS's memory; how many ranks may share a GPU.

The rank's start remembers the environment; `samebits.init`, or the script's own `init_process_group`, compares. Nothing is
remembered in a fresh interpreter.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, MutableMapping

from samebits.errors import UsageError
from samebits.notices import say

PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "LD_PRELOAD")
"""Variables that libraries read once, while loading."""

OF_GPUS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Those that matter on GPUs only: torch chooses the allocator from them in an initialiser of its library (c10's
`BackendStaticInitializer`). CUDA's own (`CUDA_VISIBLE_DEVICES`, `CUDA_LAUNCH_BLOCKING`, ...) are read by the driver when the first
device is used, which `samebits.init` does: before that they are in time."""

IN_TIME = "TORCH_NCCL_"
"""Read when a group is made; `rank.transport.nccl` sets some itself then."""

HARMLESS = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_DETERMINISTIC"}
"""Set by libraries themselves while they are imported (scikit-learn's threadpoolctl), for later imports; or read when needed."""

_at_start: dict[str, str] | None = None


def remember(variables: Mapping[str, str]) -> None:
    """Remember the variables with which torch is already imported."""
    global _at_start  # noqa: PLW0603 - a process has one environment
    _at_start = _settings(variables)


def came_too_late(variables: Mapping[str, str], *, on_gpu: bool) -> list[str]:
    """The variables that changed since `remember`; none when it was not called."""
    if _at_start is None:
        return []
    now = _settings(variables)
    changed = sorted(name for name in now.keys() | _at_start.keys() if now.get(name) != _at_start.get(name))
    return [name for name in changed if on_gpu or name not in OF_GPUS]


def say_too_late(variables: Mapping[str, str], *, rank: int, on_gpu: bool) -> None:
    """Say on rank 0, once in a process, what changed too late."""
    late = came_too_late(variables, on_gpu=on_gpu) if rank == 0 else []
    if late:
        say(
            f"{', '.join(late)} changed after torch was loaded, so it has no effect. Set it before `samebits run`, or start "
            f"with --start-method spawn."
        )
        remember(variables)


def _settings(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name.startswith((*PREFIXES, *OF_GPUS)) and not name.startswith(IN_TIME) and name not in HARMLESS
    }


NAME = "SAMEBITS_SHARE_GPU"
MOST = 64


def ranks_per_gpu(variables: Mapping[str, str]) -> int:
    """How many ranks may share a GPU; 1 unless the variable says more.

    Raises:
        UsageError: when it is no number that can be.
    """
    text = variables.get(NAME, "")
    if text and (re.fullmatch("[0-9]{1,3}", text, re.ASCII) is None or not 1 <= int(text) <= MOST):
        raise UsageError(f"{NAME} must be a number of ranks from 1 to {MOST}, but is {text!r}.", "Set it to 4.")
    return int(text or 1)


def index_of(local_rank: int, gpus: int) -> int:
    """The GPU of a rank: its own number, and counted again from 0 where there are fewer GPUs than ranks."""
    return local_rank % max(gpus, 1)


def how_to_share(ranks: int, gpus: int) -> str:
    """What lets so many ranks run on so many GPUs, of which there is at least one."""
    return f"{NAME}={-(-ranks // gpus)} lets ranks share {'it' if gpus == 1 else 'them'}, for tests and proofs"


# The memory in which cuBLAS works, without which deterministic matmuls raise. torch looks at the variable once in a process, at its
# first matmul on a GPU, also when nothing deterministic was asked for yet. So it is set when samebits is imported; `samebits.init`
# would come after a warm-up, or after a notebook's first cells.

WORKSPACE, WORKSPACE_SIZES = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


def claim_workspace(variables: MutableMapping[str, str], *, uses_cuda: bool) -> bool:
    """Set cuBLAS's variable unless it is set; return whether that may be too late.

    Args:
        variables: the environment.
        uses_cuda: whether this process has used a GPU already.
    """
    is_late = uses_cuda and WORKSPACE not in variables
    variables.setdefault(WORKSPACE, WORKSPACE_SIZES)
    return is_late


def _uses_cuda() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda is not None and cuda.is_initialized())


IS_LATE = claim_workspace(os.environ, uses_cuda=_uses_cuda())
"""Whether torch used a GPU in this process before samebits was imported, and nobody had set the variable."""
TOO_LATE = (
    f"torch used a GPU before samebits was imported, so deterministic matmuls may raise: import samebits first, or export "
    f"{WORKSPACE}={WORKSPACE_SIZES}."
)
