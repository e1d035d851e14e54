"""The check that all ranks still hold the same model: at the start of every epoch, and at the end of the run.

Between a step's lanes the script does as it likes: an `optimizer.step()` behind `if run.is_main`, or a learning rate
that depends on the rank, lets models drift apart without an error from torch. The check costs a pass over the
parameters per epoch.
"""

from __future__ import annotations

from lockstep.errors import UsageError
from lockstep.run.run_state import RunState


def check_replicas(run: RunState, told: list[list[int]]) -> None:
    """Raise `UsageError` on every rank when the ranks' checksums differ. Collective: call it on every rank."""
    stages = run.setup.mesh.stages
    if run.machinery.witness is not None or all(sums == told[rank % stages] for rank, sums in enumerate(told)):
        return  # `lockstep verify` compares more, and names the step
    names = run.machinery.transport.all_gather_object(run.machinery.strategy.name_difference(), "name the difference")
    name = next(filter(None, names), "something")
    raise UsageError(
        f"The ranks no longer hold the same model ({name} differs).",
        "Look for what depends on the rank outside the lanes: an optimizer.step() on some ranks only, a learning rate "
        "or a write that differs between ranks. `lockstep verify` names the first step and tensor.",
    )
