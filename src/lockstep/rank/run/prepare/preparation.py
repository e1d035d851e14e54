"""`run.prepare`: take what the script made, check that it can be carried and that the ranks agree on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset

from lockstep.errors import UsageError
from lockstep.notices import say
from lockstep.protocol.arithmetic import arithmetic_text, why_not_exact
from lockstep.protocol.layout.cut import Cut
from lockstep.rank.checkpoint.model_state import infinite_parts
from lockstep.rank.checkpoint.optimizer_state import keep_groups
from lockstep.rank.data.loader import LoaderContext, PreparedLoader, leftover_of, refuse_unsupported
from lockstep.rank.data.stream import PreparedStream
from lockstep.rank.data.uses import dataset_digest
from lockstep.rank.init.device import is_shared
from lockstep.rank.init.numerics import fingerprint, flags, refuse_several_devices, set_compiler
from lockstep.rank.init.streams import seed_process
from lockstep.rank.recording.calm import calm_module
from lockstep.rank.run.loop.evaluation import evaluate
from lockstep.rank.run.loop.randomness import objection_to_lanes
from lockstep.rank.run.position.metrics import keep
from lockstep.rank.run.position.moment import Region
from lockstep.rank.run.prepare.late import LoneParameter, number_all, refuse_captured, refuse_late
from lockstep.rank.run.prepare.overflow import Overflow
from lockstep.rank.run.run_state import Config, LoopState, RunState
from lockstep.rank.strategy.agreement import spans_devices
from lockstep.rank.strategy.contract import RIGHT_FORM, misplaced
from lockstep.rank.strategy.norm import has_synchronised_norm
from lockstep.rank.strategy.optimizer_kinds import follow_parameters
from lockstep.rank.strategy.other_users import refuse_other_users


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
        _refuse(run.loop_state, thing)
    for loader in (thing for thing in things if isinstance(thing, DataLoader)):
        refuse_unsupported(loader)
    taken = [LoneParameter(thing) if isinstance(thing, Tensor) else thing for thing in things]
    models = [thing for thing in taken if isinstance(thing, nn.Module)]
    if models:
        _adopt(run, models, buffers)
    for optimizer in (thing for thing in things if isinstance(thing, Optimizer)):
        _watch(run, optimizer, updates_by)
    if run.config.arithmetic.numerics == "exact":
        set_compiler()
    run.loop_state.prepared.taken.extend(taken)
    prepared = [_loader(run, thing) if isinstance(thing, DataLoader) else thing for thing in things]
    number_all(run, taken, is_late=is_late)
    _write_decisions(run)
    return prepared


def _refuse(loop_state: LoopState, thing: Any) -> None:
    kind = type(thing).__name__
    if any(thing is taken for taken in loop_state.prepared.taken) or isinstance(thing, PreparedLoader):
        raise UsageError(f"run.prepare got the same {kind} twice.", "Prepare everything once, before the loop.")
    if isinstance(thing, (DistributedDataParallel, DataParallel)):
        raise UsageError(
            f"run.prepare got {kind}(model), but lockstep reduces the gradients itself.",
            f"Pass the model without {kind}.",
        )
    if isinstance(thing, Tensor) and any(
        thing is one for model in loop_state.prepared.models for one in model.parameters()
    ):
        raise UsageError(
            f"run.prepare got a parameter of shape {tuple(thing.shape)} that was already prepared with its module.",
            "Leave it out.",
        )
    if not isinstance(thing, (nn.Module, Tensor, Optimizer, LRScheduler, DataLoader)):
        raise UsageError(
            f"run.prepare does not know what to do with {kind}.",
            "Pass models, parameters, optimizers, DataLoaders and torch's own schedulers. Anything else that changes while "
            "training goes to run.track, with state_dict and load_state_dict, or states do not hold it.",
        )


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
        if run.components.recorder is not None and run.components.recorder.plain:
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


def _watch(run: RunState, optimizer: Optimizer, updates_by: str | None) -> None:
    """Check that the optimizer updates the prepared models, and only them; look at each of its steps."""
    known = {id(parameter) for model in run.loop_state.prepared.models for parameter in model.parameters()}
    owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in known for parameter in owned)
    if foreign == len(owned):
        raise UsageError(
            f"{type(optimizer).__name__} updates no parameter of the prepared model.",
            "Make it from model.parameters() of the same object, after the model has its final layers, and prepare "
            "both.",
        )
    if foreign:
        raise UsageError(
            f"{type(optimizer).__name__} updates {foreign} tensors that belong to no prepared model, so their "
            "gradients would not be reduced.",
            "Pass them (or their module) to run.prepare too.",
        )
    follow_parameters(optimizer)
    run.components.unprepared.take(optimizer)
    run.loop_state.prepared.hooks.extend([*keep_groups(optimizer), optimizer.register_step_pre_hook(_before_step(run))])
    if run.components.scaler is not None:
        run.loop_state.prepared.hooks.extend(Overflow(run, run.components.scaler).watch(optimizer))
    run.components.strategy.take_optimizer(optimizer, updates_by, run.loop_state.position.require_same_on_every_rank)


def _before_step(run: RunState) -> Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]:
    def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls_back = any(callable(value) for value in [*args, *kwargs.values()])
        if calls_back and (not run.components.strategy.takes_closures or run.components.scaler is not None):
            why = run.components.strategy.name if run.components.scaler is None else "16-mixed"
            raise UsageError(
                f"optimizer.step(closure) computes more gradients inside the update, but {why} must prepare them "
                "before it.",
                "Use --strategy ddp (and precision 32 or bf16-mixed), or call optimizer.step() after the "
                f"lanes:\n{RIGHT_FORM}",
            )
        if run.loop_state.position.region is Region.LANE:
            raise misplaced(
                "optimizer.step() was called inside a step's lanes, where the gradient is not complete",
                f"Call it after them:\n{RIGHT_FORM}",
            )
        if run.loop_state.open_pass.broken is not None and not calls_back:
            raise UsageError(
                f"There is no gradient for this step: {run.loop_state.open_pass.broken}.",
                f"Write the loop like this:\n{RIGHT_FORM}",
            )
        if not run.loop_state.prepared.preparations.holds(optimizer):
            raise UsageError(
                f"This {type(optimizer).__name__} was replaced by one that was prepared later for the same parameters, so no "
                "state has it any more.",
                "Call step() of the later one, or prepare both before the loop.",
            )
        if calls_back:
            run.components.strategy.expect_closure()
        run.components.strategy.before_update(optimizer)

    return before_step


def _loader(run: RunState, loader: DataLoader[Any]) -> PreparedLoader:
    number = len(run.loop_state.prepared.loaders)
    records_plain = run.components.recorder is not None and run.components.recorder.plain
    context = LoaderContext(
        run.config.seed,
        number,
        run.config.lanes,
        run.config.placement.num_lanes,
        seed_process,
        device=run.config.device,
        per_sample=records_plain,
    )
    is_stream = isinstance(loader.dataset, IterableDataset)
    kind = PreparedStream if is_stream else PreparedLoader
    prepared = kind(loader, context, lambda prepared: evaluate(run, prepared))
    if (said := leftover_of(loader)) and run.config.environment.position.rank == 0:
        say(said)
    with run.components.streams.elsewhere():
        seed_process(run.config.seed)
        mine = _told(loader.dataset) if not is_stream else [0, type(loader.dataset).__name__]
    for rank, theirs in enumerate(run.components.transport.all_gather_object(mine, "prepare loader")):
        if theirs[0] != mine[0]:
            raise UsageError(
                f"The data set has {theirs[0]} samples on rank {rank} but {mine[0]} on rank "
                f"{run.components.transport.rank}.",
                "Give every rank the whole data set; lockstep splits it.",
            )
        if theirs[1] != mine[1]:
            raise UsageError(
                f"The data set has different samples on rank {rank} than on rank {run.components.transport.rank}.",
                "Read the same files in the same order everywhere (sort directory listings), and do not shuffle or "
                "split by rank.",
            )
    run.loop_state.prepared.loaders.append(prepared)
    return prepared


def _told(dataset: Any) -> list[Any]:
    return [len(dataset), dataset_digest(dataset)]


def _write_decisions(run: RunState) -> None:
    """Write the decisions for the launcher's second start line, and for the record."""
    if run.config.environment.position.rank != 0 or not run.loop_state.prepared.loaders:
        return
    loader = run.loop_state.prepared.loaders[0]
    if run.config.folder is None:
        _say_decisions(run, loader.batch_size)
        return
    size, lanes = loader.batch_size, run.config.placement.num_lanes
    decided = {
        "lanes": lanes,
        "batch_size": size,
        "lane_sizes": [] if size is None else Cut(size, lanes).full_sizes(),
        "strategy": str(run.config.mesh),
        "not_exact": _why_not_exact(run.config),
        "replicas": [run.config.mesh.members(replica) for replica in range(run.config.mesh.replicas)],
        "ranks_are_fixed": run.config.mesh.is_named or run.config.mesh.strategy == "dp",
        "states": run.loop_state.checkpointing.automatic.place,
        "seed": run.config.seed,
        "threads": run.config.threads,
        "lanes_named": run.config.lanes_named,
        "lanes_note": _lanes_note(run.config),
        "fingerprint": fingerprint(run.config.device, run.config.threads),
        "arithmetic": _arithmetic(run.config),
    }
    keep(run.config.folder.decided, json.dumps(decided), run.components.step_timer)


def _lanes_note(config: Config) -> str:
    """What to add to a number of lanes that nobody named."""
    if config.lanes_named:
        return ""
    if config.environment.position.world_size == 1 < config.placement.num_lanes:
        return " (default; one rank alone is faster with lanes=1: other bits on more ranks)"
    return " (default; lanes= changes it)"


def _why_not_exact(config: Config) -> str:
    return why_not_exact(config.mesh.strategy, config.arithmetic.numerics, config.arithmetic.allow)


def _arithmetic(config: Config) -> dict[str, Any]:
    """Precision, numerics and every flag that they set, for decided.json and the line about them."""
    return {
        "precision": config.arithmetic.precision,
        "numerics": config.arithmetic.numerics,
        "allow": list(config.arithmetic.allow),
        "seed": config.seed,
        "device": config.device.type,
        "flags": flags(),
    }


def _say_decisions(run: RunState, batch_size: int | None) -> None:
    """Say once, without our launcher, what the same bits need elsewhere."""
    if not run.loop_state.said.decisions:
        run.loop_state.said.decisions = True
        ranks, lanes = run.components.transport.world_size, run.config.placement.num_lanes
        needed = f"{lanes} lane{'s' * (lanes > 1)}{_lanes_note(run.config)}, {run.config.threads} thread{'s' * (run.config.threads > 1)} each"
        same = "" if _why_not_exact(run.config) else f"same bits elsewhere with {needed}; "
        batch = "global batches of batch_sampler" if batch_size is None else f"global batch {batch_size}"
        say(
            f"{ranks} rank{'s' * (ranks > 1)} on {run.config.device.type}, {batch}, {run.config.mesh}; "
            f"{same}numerics {arithmetic_text(_arithmetic(run.config))}"
        )
