"""What `Run` does over ranks besides training: combine numbers and tensors, and log values.

Collective: call each function on every rank, at the same place in the script; `Run` says so to the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.protocol.layout.lane_tree import tree_sum
from samebits.rank.caller import where
from samebits.rank.data.loader import PreparedLoader
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.moment import Region
from samebits.rank.position.run_state import RunState
from samebits.rank.position.tally import Agreed, Tally, gather_rows, left_early, number

V = TypeVar("V", float, Tensor)


def over_ranks(run: RunState, call: str, value: float | Tensor, scale: float) -> Any:
    """`scale` times the sum of `value` in rank order."""
    run.loop_state.position.require_same_on_every_rank(call)
    run.components.checks.put_together()
    if isinstance(value, Tensor):
        form = _form(value)
        if any(other != form for other in run.components.transport.all_gather_object(form, call, where())):
            raise UsageError(
                f"{call} needs tensors of the same shape, dtype and kind of device on every rank.",
                "Reduce something that has the same form on every rank: a sum, a count.",
            )
        # Stacked and summed in rank order: an all_reduce of the backend chooses its own.
        total = torch.stack(run.components.transport.all_gather(value.detach().contiguous())).sum(0)
        return returned(run, call, total if scale == 1.0 else total * scale)
    gathered = run.components.transport.all_gather_object(float(value), call, where())
    return returned(run, call, Agreed(sum(gathered) * scale))


def returned(run: RunState, call: str, value: V) -> V:
    """`value`, after whoever looks at the run has seen that the call returns it."""
    for logged in run.components.observers.logged:
        logged(run.components.step_timer.step, {f"{call} at {where()}": value})
    return value


def gather(run: RunState, rows: Tensor, loader: object) -> Tensor:
    """See `Run.gather`; `loader`: None for that of the last evaluation."""
    run.loop_state.position.require_same_on_every_rank("run.gather")
    run.components.checks.put_together()
    evaluated = run.loop_state.evaluation
    if loader is not None and not isinstance(loader, PreparedLoader):
        raise UsageError(
            "run.gather needs the loader that run.prepare returned.", "Write `loader = run.prepare(loader)`."
        )
    of = loader if loader is not None else evaluated.loader
    indices = evaluated.samples if loader is None else loader.evaluated
    if not run.config.counts:
        rows, indices = rows[:0], []
    left_at = of.left_at if of is not None else ""
    whole = gather_rows(rows, indices, run.components.transport, run.config.device, where(), left_at=left_at)
    return returned(run, "run.gather", whole)


def broadcast(run: RunState, value: Any, source: int) -> Any:
    """Return what rank `source` has."""
    run.loop_state.position.require_same_on_every_rank("run.broadcast")
    rank, world_size = run.components.transport.rank, run.components.transport.world_size
    if not 0 <= source < world_size:
        raise UsageError(
            f"`source` must be a rank from 0 to {world_size - 1}, but is {source}.",
            "Name the rank that has the values.",
        )
    if not isinstance(value, Tensor):
        mine = value if rank == source else None
        return run.components.transport.all_gather_object(mine, "run.broadcast", where())[source]
    gathered = run.components.transport.all_gather_object(_form(value), "run.broadcast", where())
    if any(other != gathered[0] for other in gathered):
        raise UsageError(
            "run.broadcast needs a tensor of the same shape, dtype and kind of device on every rank.",
            "Make the tensor on every rank, of the same form: torch.empty(shape, device=run.device) where there are no "
            "values.",
        )
    copy = value.detach().clone(memory_format=torch.contiguous_format)
    run.components.transport.broadcast(copy, source)
    return copy


def _form(value: Tensor) -> list[Any]:
    """What ranks must agree on before they exchange a tensor: tensors of other devices go other ways."""
    return [list(value.shape), str(value.dtype), value.device.type]


def new_tally(run: RunState) -> Tally:
    """A tally over the run's lanes."""

    def exchange(value: Any, call: str) -> list[Any]:
        run.components.checks.put_together(only_counted=True)
        evaluated = run.loop_state.evaluation
        left, evaluated.tallied_until = evaluated.tallied_until, ""
        gathered = run.components.transport.all_gather_object([evaluated.digest, left, value], call, where())
        if line := next((left for _, left, _ in gathered if left), ""):
            raise left_early(line, call)
        if len({evaluation for evaluation, *_ in gathered}) > 1:
            raise UsageError(
                f"{call}: the ranks evaluated different samples, or in a different order.",
                "Iterate the same prepared loaders on every rank, and give samplers no generator of their own.",
            )
        return [values for *_, values in gathered]

    def tallied(values: Mapping[str, float]) -> None:
        for logged in run.components.observers.logged:
            logged(run.components.step_timer.step, values)

    tally = Tally(
        run.loop_state.position,
        run.config.placement.num_lanes,
        run.config.lanes,
        exchange,
        run.loop_state.tallies.changed,
        returned=tallied,
    )
    run.loop_state.tallies.add(tally, in_body=run.loop_state.epochs.in_body)
    return tally


def log(run: RunState, scalars: Mapping[str, float | Tensor]) -> None:
    """See `Run.log`."""
    if run.loop_state.position.region is Region.EVALUATION:
        raise UsageError("run.log inside an evaluation loop would log one rank's batches.", "Use run.tally() there.")
    if run.loop_state.position.region is Region.LANE:
        _log_in_lane(run.loop_state, {name: number(value) for name, value in scalars.items()})
        return
    values = {name: value if isinstance(value, Agreed) else number(value) for name, value in scalars.items()}
    unknown = {name: value for name, value in values.items() if not isinstance(value, Agreed)}
    if unknown:
        gathered = run.components.transport.all_gather_object(
            [run.components.step_timer.samples or 1, unknown], "log", where()
        )
        for name in unknown:
            values[name] = _weighted([(samples, values[name]) for samples, values in gathered])
    run.components.metrics.write({name: float(value) for name, value in values.items()})
    for logged in run.components.observers.logged:
        logged(run.components.step_timer.step, values)


def _weighted(pairs: list[tuple[float, float]]) -> float:
    """The mean of (samples, value) pairs; a value on which all agree stays as it is."""
    # Multiplied and divided, it might come back with another last bit.
    if len({value for _, value in pairs}) == 1:
        return pairs[0][1]
    return tree_sum([samples * value for samples, value in pairs]) / tree_sum([float(samples) for samples, _ in pairs])


def _log_in_lane(loop_state: LoopState, values: dict[str, float]) -> None:
    """Add to the lane's weighted sums; the step hands them to the other ranks with the gradients."""
    sums = loop_state.open_pass.lane_logs.setdefault(loop_state.position.lane, {})
    for name, value in values.items():
        total, weight = sums.get(name, (0.0, 0.0))
        sums[name] = (total + value * loop_state.position.num_samples, weight + loop_state.position.num_samples)
