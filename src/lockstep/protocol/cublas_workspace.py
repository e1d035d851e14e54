"""The memory in which cuBLAS works, without which deterministic matmuls raise.

torch looks at the variable once in a process, at its first matmul on a GPU, also when nothing deterministic was asked for yet. So
it is set when lockstep is imported; `lockstep.init` would come after a warm-up, or after a notebook's first cells.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

NAME, VALUE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


def claim(variables: MutableMapping[str, str], *, uses_cuda: bool) -> bool:
    """Set the variable unless it is set; return whether that may be too late.

    Args:
        variables: the environment.
        uses_cuda: whether this process has used a GPU already.
    """
    is_late = uses_cuda and NAME not in variables
    variables.setdefault(NAME, VALUE)
    return is_late


def _uses_cuda() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda is not None and cuda.is_initialized())


IS_LATE = claim(os.environ, uses_cuda=_uses_cuda())
"""Whether torch used a GPU in this process before lockstep was imported, and nobody had set the variable."""
TOO_LATE = (
    f"torch used a GPU before lockstep was imported, so deterministic matmuls may raise: import lockstep first, or export "
    f"{NAME}={VALUE}."
)
