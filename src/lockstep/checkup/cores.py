"""The cores of this process, and what `lockstep run` would make of them."""

from __future__ import annotations

from lockstep.checkup.row import Row, note, ok, problem
from lockstep.errors import UsageError
from lockstep.launch.sizing import Machine, Wish, size


def core_rows(machine: Machine, affinity: int) -> list[Row]:
    """Cores, and ranks and threads by default.

    Args:
        machine: as `lockstep run` sees it.
        affinity: cores that this process may be scheduled on, before quotas.
    """
    count = machine.cores.count
    text = f"{count} by {machine.cores.why}"
    if count < affinity:
        text += f", of {affinity} by affinity"
    return [ok("cores", text), _default(machine)]


def _default(machine: Machine) -> Row:
    try:
        sized = size(Wish(), machine)
    except UsageError as error:
        return problem("ranks", str(error), "Name them: lockstep run -n 1 --device cpu.")
    ranks = f"{sized.ranks} rank{'s' if sized.ranks != 1 else ''} on {sized.device}"
    threads = f"{sized.threads} thread{'s' if sized.threads != 1 else ''} each"
    text = f"`lockstep run` would start {ranks}, {threads}"
    if machine.omp_threads is not None and sized.threads * sized.ranks > machine.cores.count:
        return note(
            "ranks", f"{text}, by OMP_NUM_THREADS={machine.omp_threads}: more than there are cores",
            "Unset OMP_NUM_THREADS, or give --threads.",
        )  # fmt: skip
    return ok("ranks", text)
