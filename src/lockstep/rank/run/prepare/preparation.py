"""`rank.run.prepare`: take what the script made, check that it can be carried and that the ranks agree on it."""

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
from lockstep.rank.data.loader import PreparedLoader, Standing, leftover_of, refuse_unsupported
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
from lockstep.rank.run.run_state import Progress, RunState, Setup
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
    if run.progress.position.in_lane:
        raise UsageError("run.prepare was called inside a step's lanes.", "Call it before them.")
    if is_late := run.progress.loop_has_begun or run.progress.late is not None:
        refuse_late(run)
    if updates_by not in (None, "element", "parameter"):
        raise UsageError(f"updates_by={updates_by!r} is not known.", 'Use "element" or "parameter".')
    run.machinery.numerics.keep()
    for thing in things:
        _refuse(run.progress, thing)
    for loader in (thing for thing in things if isinstance(thing, DataLoader)):
        refuse_unsupported(loader)
    taken = [LoneParameter(thing) if isinstance(thing, Tensor) else thing for thing in things]
    models = [thing for thing in taken if isinstance(thing, nn.Module)]
    if models:
        _adopt(run, models, buffers)
    for optimizer in (thing for thing in things if isinstance(thing, Optimizer)):
        _watch(run, optimizer, updates_by)
    if run.setup.arithmetic.numerics == "exact":
        set_compiler()
    run.progress.taken.extend(taken)
    prepared = [_loader(run, thing) if isinstance(thing, DataLoader) else thing for thing in things]
    number_all(run, taken, is_late=is_late)
    _write_decisions(run)
    return prepared


def _refuse(progress: Progress, thing: Any) -> None:
    kind = type(thing).__name__
    if any(thing is taken for taken in progress.taken) or isinstance(thing, PreparedLoader):
        raise UsageError(f"run.prepare got the same {kind} twice.", "Prepare everything once, before the loop.")
    if isinstance(thing, (DistributedDataParallel, DataParallel)):
        raise UsageError(
            f"run.prepare got {kind}(model), but lockstep reduces the gradients itself.",
            f"Pass the model without {kind}.",
        )
    if isinstance(thing, Tensor) and any(thing is one for model in progress.models for one in model.parameters()):
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
    device = run.setup.device
    shares = is_shared(device, run.setup.environment.position)
    objection = objection_to_lanes(run.setup.mesh, run.setup.placement.num_lanes, device.type, shares=shares)
    if objection and has_synchronised_norm(models):
        raise objection
    for model in models:
        refuse_captured(model)
        if not spans_devices(model):
            _move(run, model)
        else:
            refuse_several_devices(run.setup.arithmetic.allow)
        if run.machinery.witness is not None and run.machinery.witness.plain:
            calm_module(model)
    run.machinery.strategy.set_buffer_rules(buffers)
    run.machinery.strategy.adopt([*run.progress.models, *models])
    run.progress.models.extend(models)
    for model in models:
        run.progress.began_infinite.update((id(model), name) for name in infinite_parts(model))


def _move(run: RunState, model: nn.Module) -> None:
    """Move a model to the rank's device; a view taken before stays behind, as in a plain script, but unseen here."""
    device = run.setup.device
    named = [*model.named_parameters(), *model.named_buffers()]
    moving = [(name, tensor) for name, tensor in named if tensor.device.type != device.type]
    refuse_other_users(moving, f"Take views after `model.to(run.device)`: the model moves to {device}.")
    if device.type == "cpu":
        model.to(device)
    else:
        run.machinery.strategy.bring(model, device)


def _watch(run: RunState, optimizer: Optimizer, updates_by: str | None) -> None:
    """Check that the optimizer updates the prepared models, and only them; look at each of its steps."""
    known = {id(parameter) for model in run.progress.models for parameter in model.parameters()}
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
    run.machinery.strangers.take(optimizer)
    run.progress.hooks.extend([*keep_groups(optimizer), optimizer.register_step_pre_hook(_before_step(run))])
    if run.machinery.scaler is not None:
        run.progress.hooks.extend(Overflow(run, run.machinery.scaler).watch(optimizer))
    run.machinery.strategy.take_optimizer(optimizer, updates_by, run.progress.position.require_same_on_every_rank)


def _before_step(run: RunState) -> Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]:
    def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls_back = any(callable(value) for value in [*args, *kwargs.values()])
        if calls_back and (not run.machinery.strategy.takes_closures or run.machinery.scaler is not None):
            why = run.machinery.strategy.name if run.machinery.scaler is None else "16-mixed"
            raise UsageError(
                f"optimizer.step(closure) computes more gradients inside the update, but {why} must prepare them "
                "before it.",
                "Use --strategy ddp (and precision 32 or bf16-mixed), or call optimizer.step() after the "
                f"lanes:\n{RIGHT_FORM}",
            )
        if run.progress.position.region is Region.LANE:
            raise misplaced(
                "optimizer.step() was called inside a step's lanes, where the gradient is not complete",
                f"Call it after them:\n{RIGHT_FORM}",
            )
        if run.progress.broken is not None and not calls_back:
            raise UsageError(
                f"There is no gradient for this step: {run.progress.broken}.",
                f"Write the loop like this:\n{RIGHT_FORM}",
            )
        if not run.progress.preparations.holds(optimizer):
            raise UsageError(
                f"This {type(optimizer).__name__} was replaced by one that was prepared later for the same parameters, so no "
                "state has it any more.",
                "Call step() of the later one, or prepare both before the loop.",
            )
        if calls_back:
            run.machinery.strategy.expect_closure()
        run.machinery.strategy.before_update(optimizer)

    return before_step


def _loader(run: RunState, loader: DataLoader[Any]) -> PreparedLoader:
    number = len(run.progress.loaders)
    witness_plain = run.machinery.witness is not None and run.machinery.witness.plain
    standing = Standing(
        run.setup.seed,
        number,
        run.setup.lanes,
        run.setup.placement.num_lanes,
        seed_process,
        device=run.setup.device,
        per_sample=witness_plain,
    )
    is_stream = isinstance(loader.dataset, IterableDataset)
    kind = PreparedStream if is_stream else PreparedLoader
    prepared = kind(loader, standing, lambda prepared: evaluate(run, prepared))
    if (said := leftover_of(loader)) and run.setup.environment.position.rank == 0:
        say(said)
    with run.machinery.streams.elsewhere():
        seed_process(run.setup.seed)
        mine = _told(loader.dataset) if not is_stream else [0, type(loader.dataset).__name__]
    for rank, theirs in enumerate(run.machinery.transport.all_gather_object(mine, "prepare loader")):
        if theirs[0] != mine[0]:
            raise UsageError(
                f"The data set has {theirs[0]} samples on rank {rank} but {mine[0]} on rank "
                f"{run.machinery.transport.rank}.",
                "Give every rank the whole data set; lockstep splits it.",
            )
        if theirs[1] != mine[1]:
            raise UsageError(
                f"The data set has different samples on rank {rank} than on rank {run.machinery.transport.rank}.",
                "Read the same files in the same order everywhere (sort directory listings), and do not shuffle or "
                "split by rank.",
            )
    run.progress.loaders.append(prepared)
    return prepared


def _told(dataset: Any) -> list[Any]:
    return [len(dataset), dataset_digest(dataset)]


def _write_decisions(run: RunState) -> None:
    """Write the decisions for the launcher's second start line, and for the record."""
    if run.setup.environment.position.rank != 0 or not run.progress.loaders:
        return
    loader = run.progress.loaders[0]
    if run.setup.folder is None:
        _say_decisions(run, loader.batch_size)
        return
    size, lanes = loader.batch_size, run.setup.placement.num_lanes
    decided = {
        "lanes": lanes,
        "batch_size": size,
        "lane_sizes": [] if size is None else Cut(size, lanes).full_sizes(),
        "strategy": str(run.setup.mesh),
        "not_exact": _why_not_exact(run.setup),
        "replicas": [run.setup.mesh.members(replica) for replica in range(run.setup.mesh.replicas)],
        "ranks_are_fixed": run.setup.mesh.is_named or run.setup.mesh.strategy == "dp",
        "states": run.progress.automatic.place,
        "seed": run.setup.seed,
        "threads": run.setup.threads,
        "lanes_named": run.setup.lanes_named,
        "fingerprint": fingerprint(run.setup.device, run.setup.threads),
        "arithmetic": _arithmetic(run.setup),
    }
    keep(run.setup.folder.decided, json.dumps(decided), run.machinery.ledger)


def _why_not_exact(setup: Setup) -> str:
    return why_not_exact(setup.mesh.strategy, setup.arithmetic.numerics, setup.arithmetic.allow)


def _arithmetic(setup: Setup) -> dict[str, Any]:
    """Precision, numerics and every flag that they set, for decided.json and the line about them."""
    return {
        "precision": setup.arithmetic.precision,
        "numerics": setup.arithmetic.numerics,
        "allow": list(setup.arithmetic.allow),
        "seed": setup.seed,
        "device": setup.device.type,
        "flags": flags(),
    }


def _say_decisions(run: RunState, batch_size: int | None) -> None:
    """Say once, without our launcher, what the same bits need elsewhere."""
    if not run.progress.said_decisions:
        run.progress.said_decisions = True
        ranks, lanes = run.machinery.transport.world_size, run.setup.placement.num_lanes
        needed = f"{lanes} lane{'s' * (lanes > 1)}, {run.setup.threads} thread{'s' * (run.setup.threads > 1)} each"
        same = "" if _why_not_exact(run.setup) else f"same bits elsewhere with {needed}; "
        batch = "global batches of batch_sampler" if batch_size is None else f"global batch {batch_size}"
        say(
            f"{ranks} rank{'s' * (ranks > 1)} on {run.setup.device.type}, {batch}, {run.setup.mesh}; "
            f"{same}numerics {arithmetic_text(_arithmetic(run.setup))}"
        )
