"""Whether every rank keeps the same in its optimizers and tracked objects: one that keeps a part of its own has no single state.

Of torch's own optimizers the ranks compare the bits anyway (`checks.replicas`). What others do in `step()` is not known: some
give each rank a part of the parameters, so that only its owner has the momentum. One number of each is compared before the first
snapshot, and with every state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.notices import say
from samebits.protocol.state_files.manifest import OTHER_TENSORS
from samebits.rank.caller import where
from samebits.rank.checkpoint.format.state import State, differing
from samebits.rank.checkpoint.parts.optimizers import optimizers_of
from samebits.rank.position.exact_json import digest
from samebits.rank.position.run_state import RunState
from samebits.rank.strategy.agreement import bit_sums, packed

APART_FIX = (
    "Use one that updates all parameters on every rank: the batch is divided over the ranks already, and --strategy zero1 divides "
    "the states of optimizers."
)


class SameOnRanks:
    """What one rank knows of that, in one start of the ranks."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._num_steps, self._is_apart = 0, False
        self._whole: set[str] = set()
        """Optimizers that kept the same on every rank when they had a state, by label."""

    def after_step(self, *, says: bool) -> str:
        """Compare after steps 1, 2, 4, 8, … of this start; return why there can be no snapshot, else nothing.

        Collective: call it on every rank, where one has a snapshot.

        Args:
            says: whether rank 0 says so.
        """
        run = self._run
        self._num_steps += 1
        if self._num_steps & (self._num_steps - 1) or self._is_apart:
            return ""
        has_state = {label for label, one in unknown_optimizers(run) if one.state}
        optimizers, tracked = of_optimizers(run), of_tracked(run)
        if not (optimizers or tracked):
            return ""
        record = run.components.transport.all_gather_object([optimizers, tracked], "snapshot", where())
        problem = apart([one for one, _ in record], [one for _, one in record])
        if problem is None:
            self._whole |= has_state
            return ""
        self._is_apart = True
        if says and run.components.transport.rank == 0:
            say(f"{problem.problem} After a loss all ranks start again from the beginning. {problem.fix}")
        return problem.problem[:-1]

    def is_known(self) -> bool:
        """Whether no optimizer has a state that was never compared; before the first step it has what all ranks have loaded."""
        return not self._num_steps or all(
            not one.state or label in self._whole for label, one in unknown_optimizers(self._run)
        )


def unknown_optimizers(run: RunState) -> list[tuple[str, Optimizer]]:
    """Those that might give each rank a part, by label; they are not torch's, and nobody has divided their state."""
    if not _holds_whole(run):
        return []
    return [
        (f"{label} ({type(one).__name__})", one)
        for label, one in optimizers_of(run.loop_state)
        if not type(one).__module__.startswith("torch.optim.")
    ]


def _holds_whole(run: RunState) -> bool:
    """Whether there are several ranks, of which each has the whole state; `samebits verify` compares more by itself."""
    several = run.components.transport.world_size > 1
    return several and run.components.strategy.name == "ddp" and not run.config.purpose.records


def of_optimizers(run: RunState) -> dict[str, str]:
    """A number of each of them, by label."""
    return {label: _number(label, _states(optimizer)) for label, optimizer in unknown_optimizers(run)}


def of_tracked(run: RunState) -> dict[str, str]:
    """A number of each tracked object, by name. A state compares them itself."""
    if not _holds_whole(run):
        return {}
    return {name: _number(name, thing.state_dict()) for name, thing in run.loop_state.prepared.tracked.items()}


def apart(optimizers: Sequence[Mapping[str, str]], tracked: Sequence[Mapping[str, str]] = ()) -> UsageError | None:
    """What to say of the first whose number is not the same on every rank; None where there is none."""
    if label := differing(list(optimizers)):
        return UsageError(f"{label} keeps another state on each rank, so no single state can hold it.", APART_FIX)
    if label := differing(list(tracked)):
        return UsageError(
            f"{label!r}, which is tracked, is not the same on every rank, so no single state can hold it.",
            "Change it behind the lanes, by what run.lane_sum, run.mean or run.tally returned.",
        )
    return None


def _states(optimizer: Optimizer) -> list[Any]:
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    others = {key: value for key, value in optimizer.state.items() if not isinstance(key, Tensor)}
    return [[optimizer.state.get(one) for one in parameters], others]


def _number(label: str, value: Any) -> str:
    """A digest of the values and the bits of their tensors; the same everywhere for what no state can hold, which says so itself."""
    contents = State()
    try:
        contents.add(label, value, OTHER_TENSORS)
    except UsageError:
        return ""
    tensors = [one.detach() for one in contents.tensors[label] if not one.is_meta]
    return digest([contents.documents[label], bit_sums(packed(tensors))])
