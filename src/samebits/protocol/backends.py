"""Which backend of torch.distributed a call gets under `--backend` or `spawn(backend=...)`: pure decisions with their sentences."""

from __future__ import annotations

from samebits.errors import UsageError

OURS = "samebits"
BACKENDS = (OURS, "gloo", "nccl", "mpi")
"""What may be asked for."""
FOR_CPU = frozenset({OURS, "gloo", "mpi"})


def check_backend(name: str, device: str, compiled: bool) -> None:
    """Refuse what cannot work before anything starts.

    Args:
        name: what was asked for.
        device: where the ranks compute.
        compiled: whether the compiled part of samebits is installed.

    Raises:
        UsageError: with the fix.
    """
    if name not in BACKENDS:
        raise UsageError(f"There is no backend {name!r}.", f"Use one of {', '.join(BACKENDS)}.")
    if name == OURS and not compiled:
        raise UsageError(
            "The backend samebits needs the compiled part of samebits, which is not installed here.",
            "Install g++ and samebits again, or use gloo.",
        )
    if name == "nccl" and device == "cpu":
        raise UsageError("The backend nccl needs a GPU for each rank, but these ranks compute on the CPU.", "Use gloo.")


def backend_for(asked: str | None, wanted: str, device: str) -> str | None:
    """The backend of one call: `wanted` in place of a single one that it can replace, else as asked.

    A name for each device ("cpu:gloo,cuda:nccl") stays, because samebits's group cannot be part of such a mixture; and
    on a GPU a CPU backend does not replace NCCL.

    Args:
        asked: what the script asks for; None leaves it to torch.
        wanted: what was asked for on the command line or in `spawn`; empty for nothing.
        device: where the ranks compute.
    """
    name = (asked or "").lower().removeprefix("cpu:")
    known = name in BACKENDS or not name
    keeps_gpus = device == "cuda" and wanted in FOR_CPU and name in ("", "nccl")
    return wanted if wanted and known and not keeps_gpus else asked


def is_ours(backend: str | None) -> bool:
    """Whether samebits's own backend is part of it."""
    return OURS in {part.rpartition(":")[2] for part in (backend or "").lower().split(",")}
