"""`run.prepare`: take what the script made, check that it can be carried and that the ranks agree on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from samebits.errors import UsageError
from samebits.notices import say
from samebits.rank.data.loader import (
    OWN_ORDER_FIX,
    LoaderContext,
    PreparedLoader,
    leftover_of,
    own_order,
    refuse_unsupported,
)
from samebits.rank.data.stream import PreparedStream
from samebits.rank.data.uses import dataset_digest
from samebits.rank.init.device import is_shared
from samebits.rank.init.numerics import refuse_several_devices, set_compiler
from samebits.rank.init.random_streams import seed_process
from samebits.rank.portable.prepared import look_at, seed_held_process
from samebits.rank.position.model_state import infinite_parts
from samebits.rank.position.preparations import LOADER, MODEL, OPTIMIZER, SCHEDULER, Modes
from samebits.rank.position.run_state import RunState
from samebits.rank.recording.calm import calm_module
from samebits.rank.run.decisions import write_decisions
from samebits.rank.run.loop.evaluation import evaluate
from samebits.rank.run.prepare.optimizers import watch
from samebits.rank.run.prepare.refusals import (
    LoneParameter,
    objection_to_lanes,
    refuse,
    refuse_captured,
    refuse_late,
)
from samebits.rank.strategy.agreement import spans_devices
from samebits.rank.strategy.norm import has_synchronised_norm
from samebits.rank.strategy.other_users import refuse_other_users


def prepare(run: RunState, things: Sequence[Any], buffers: Mapping[str, str], updates_by: str | None) -> list[Any]:
    """Take `things`; return the prepared ones in the same order. See `Run.prepare`."""
    if not things:
        raise UsageError(
            "run.prepare got nothing.", "Pass at least one model, parameter, optimizer, scheduler or DataLoader."
        )
    if run.loop_state.position.in_lane:
        raise UsageError("run.prepare was called inside a step's lanes.", "Call it before them.")
    if is_late := run.loop_state.loop_has_begun or run.loop_state.resumption.late is not None:
        refuse_late(run)
    if updates_by not in (None, "element", "parameter"):
        raise UsageError(f"updates_by={updates_by!r} is not known.", 'Use "element" or "parameter".')
    run.components.numerics.keep()
    for thing in things:
        refuse(run.loop_state, thing)
    _look_at(run, things)
    taken = [LoneParameter(thing) if isinstance(thing, Tensor) else thing for thing in things]
    models = [thing for thing in taken if isinstance(thing, nn.Module)]
    if models:
        _adopt(run, models, buffers)
    for optimizer in (thing for thing in things if isinstance(thing, Optimizer)):
        watch(run, optimizer, updates_by)
    if run.config.arithmetic.numerics != "fast":
        set_compiler()
    run.loop_state.prepared.taken.extend(taken)
    prepared = [_loader(run, thing) if isinstance(thing, DataLoader) else thing for thing in things]
    number_all(run, taken, is_late=is_late)
    write_decisions(run)
    return prepared


def _look_at(run: RunState, things: Sequence[Any]) -> None:
    """Refuse loaders that no lane can be cut from, and what numerics="portable" cannot hold."""
    for loader in (thing for thing in things if isinstance(thing, DataLoader)):
        refuse_unsupported(loader)
    if run.config.arithmetic.numerics == "portable":
        for said in look_at(things):
            if run.config.environment.position.rank == 0:
                say(said)


def _adopt(run: RunState, models: list[nn.Module], buffers: Mapping[str, str]) -> None:
    device = run.config.device
    shares = is_shared(device, run.config.environment.position)
    objection = objection_to_lanes(run.config.mesh, run.config.placement.num_lanes, device.type, shares=shares)
    if objection and has_synchronised_norm(models):
        raise objection
    for model in models:
        refuse_captured(model)
        if not spans_devices(model):
            _move(run, model)
        else:
            refuse_several_devices(run.config.arithmetic.allow)
        if run.config.purpose.is_plain:
            calm_module(model)
    run.components.strategy.set_buffer_rules(buffers)
    run.components.strategy.adopt([*run.loop_state.prepared.models, *models])
    run.loop_state.prepared.models.extend(models)
    for model in models:
        run.loop_state.prepared.began_infinite.update((id(model), name) for name in infinite_parts(model))


def _move(run: RunState, model: nn.Module) -> None:
    """Move a model to the rank's device; a view taken before stays behind, as in a plain script, but unseen here."""
    device = run.config.device
    named = [*model.named_parameters(), *model.named_buffers()]
    moving = [(name, tensor) for name, tensor in named if tensor.device.type != device.type]
    refuse_other_users(moving, f"Take views after `model.to(run.device)`: the model moves to {device}.")
    if device.type == "cpu":
        model.to(device)
    else:
        run.components.strategy.bring(model, device)


def _loader(run: RunState, loader: DataLoader[Any]) -> PreparedLoader:
    number = len(run.loop_state.prepared.loaders)
    records_plain = run.config.purpose.is_plain
    context = LoaderContext(
        run.components.streams.seed,
        number,
        run.config.lanes,
        run.config.placement.num_lanes,
        seed_held_process if run.config.arithmetic.numerics == "portable" else seed_process,
        device=run.config.device,
        per_sample=records_plain,
    )
    is_stream = isinstance(loader.dataset, IterableDataset)
    kind = PreparedStream if is_stream else PreparedLoader
    prepared = kind(loader, context, lambda prepared, limit: evaluate(run, prepared, limit))
    if (said := leftover_of(loader)) and run.config.environment.position.rank == 0:
        say(said)
    # Seeded alike, because samples of a data set with random transformations differ from one reading to the next.
    with run.components.streams.elsewhere():
        seed_process(run.components.streams.seed)
        dataset: Any = loader.dataset
        mine = [0, type(dataset).__name__] if is_stream else [len(dataset), dataset_digest(dataset)]
    for rank, theirs in enumerate(run.components.transport.all_gather_object(mine, "prepare loader")):
        if theirs[0] != mine[0]:
            raise UsageError(
                f"The data set has {theirs[0]} samples on rank {rank} but {mine[0]} on rank "
                f"{run.components.transport.rank}.",
                "Give every rank the whole data set; samebits splits it.",
            )
        if theirs[1] != mine[1]:
            raise UsageError(
                f"The data set has different samples on rank {rank} than on rank {run.components.transport.rank}.",
                "Read the same files in the same order everywhere (sort directory listings), and do not shuffle or "
                "split by rank.",
            )
    run.loop_state.prepared.loaders.append(prepared)
    return prepared


def number_all(run: RunState, taken: Sequence[Any], *, is_late: bool) -> None:
    """Give each thing its number; late ones replace others, and take their part of a loaded state."""
    loop_state = run.loop_state
    for thing in taken:
        if is_late and isinstance(thing, Optimizer):
            _replace(run, thing)
        loop_state.prepared.preparations.add(_kind(thing), thing, is_late=is_late)
        if is_late and isinstance(thing, nn.Module):
            _note_modes(run)
    if is_late:
        if run.components.states.place and (problem := own_order(loop_state.prepared.loaders)):
            raise UsageError(problem, OWN_ORDER_FIX)
        if loop_state.resumption.late is not None:
            loop_state.resumption.late.rewind()
        run.grow()


def _kind(thing: Any) -> str:
    if isinstance(thing, nn.Module):
        return MODEL
    return OPTIMIZER if isinstance(thing, Optimizer) else LOADER if isinstance(thing, DataLoader) else SCHEDULER


def _note_modes(run: RunState) -> None:
    """Let a state record what the script switches in new models from here on."""
    first = run.loop_state.first_modes
    if first is not None:
        run.loop_state.first_modes = Modes.of(run.loop_state.prepared.models).overridden_by(first)


def _replace(run: RunState, optimizer: Optimizer) -> None:
    """Let go of optimizers all of whose parameters, as far as the models still have them, are now those of this one."""
    loop_state = run.loop_state
    here = {id(parameter) for model in loop_state.prepared.models for parameter in model.parameters()}
    mine = _parameters_of(optimizer)
    for before in [one for one in loop_state.prepared.taken if isinstance(one, Optimizer) and one is not optimizer]:
        if loop_state.prepared.preparations.holds(before) and _parameters_of(before) & here <= mine:
            for gone in (
                before,
                *(one for one in loop_state.prepared.taken if getattr(one, "optimizer", None) is before),
            ):
                loop_state.prepared.preparations.remove(gone)
                loop_state.prepared.taken[:] = [one for one in loop_state.prepared.taken if one is not gone]


def _parameters_of(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
