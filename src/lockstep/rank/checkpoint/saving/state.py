"""`run.save_state`: everything that a run needs to resume, in one folder, written by rank 0 while all wait.

It holds the prepared models, optimizers and schedulers in their order, the run's own counters, the random
streams, and what the script names. `resume` reads it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lockstep.errors import LockstepError, UsageError
from lockstep.protocol.events import Kind
from lockstep.protocol.state_files.completion import complete, not_written
from lockstep.protocol.state_files.folder import StateFolder
from lockstep.protocol.state_files.manifest import GRADIENTS, OTHER_TENSORS, SavedFile
from lockstep.rank.caller import where
from lockstep.rank.checkpoint.inventory import (
    Contents,
    Found,
    TensorSet,
    differing,
    digest,
    inventory_of,
    sources,
    write_tensors,
)
from lockstep.rank.checkpoint.model_state import ModelState
from lockstep.rank.checkpoint.optimizer_state import add_optimizer, parameter_names
from lockstep.rank.checkpoint.saving.counters import STREAM, counters
from lockstep.rank.checkpoint.saving.kept_gradients import add_gradients
from lockstep.rank.checkpoint.tensor_file import FORMAT
from lockstep.rank.checkpoint.weights import put_elsewhere
from lockstep.rank.init.numerics import fingerprint
from lockstep.rank.run.loop.replicas import bits_held, compare, compared
from lockstep.rank.run.loop_state import LoopState
from lockstep.rank.run.position.moment import Moment, Region
from lockstep.rank.run.position.preparations import OPTIMIZER, SCHEDULER
from lockstep.rank.run.run_state import Components, RunState
from lockstep.rank.transport.alone import AloneTransport
from lockstep.rank.transport.together import Together

BODY_STREAMS = "random numbers of the epoch"
MODES = "modes"
LEFT = "variables behind loops"
SAVE = "run.save_state"
TRACKED, VALUE = "tracked ", "run.state."
"""What labels of tracked objects and of values begin with."""


Write = Callable[[RunState, StateFolder, Contents, Found, Sequence[Any]], str]
"""Does something with the state on which the ranks have agreed, the last argument being what each of them reported; returns
why this rank could not. Collective: call it on every rank."""


def save_state(
    run: RunState,
    path: str | os.PathLike[str],
    extra: Mapping[str, Any],
    write: Write | None = None,
    tells: Any = None,
) -> None:
    """See `Run.save_state`.

    Args:
        run: whose state it is.
        path: where it goes.
        extra: what the script names.
        write: what comes after the ranks have agreed, by default `write_now`.
        tells: what `write` is to know of this rank on all others, as JSON values.
    """
    require_between_epochs(run.loop_state, SAVE)
    # The first exchange comes before anything else: behind `if run.is_main:` it raises before a file is touched.
    compare(run, run.components.transport.all_gather_object(bits_held(run), SAVE, where()))
    if run.loop_state.resumption.late is not None:
        run.loop_state.resumption.late.require()
    if run.loop_state.resumption.load_again is not None:
        run.loop_state.resumption.load_again()
    folder = StateFolder(place_of(run, path))
    together = Together(run.components.transport, SAVE, where())
    if run.components.transport.rank == 0:
        together.refuse(folder.refusal())
    states = {
        label: run.components.strategy.whole_state(one, everyone=False) for label, one in optimizers_of(run.loop_state)
    }
    contents = together.do(lambda: collect(run, extra, states)) or Contents()
    equal = compared(run)
    record = together.do(lambda: {file: inventory_of(tensors, equal) for file, tensors in contents.files.items()}) or {}
    found, heard = _agree(run.components, together, contents, record, tells)
    if problem := (write or write_now)(run, folder, contents, found, heard):
        together.refuse(not_written(folder.target, problem))
    together.agree()
    if write is None:
        run.note(Kind.CHECKPOINT, path=str(folder.target))


def require_between_epochs(loop_state: LoopState, call: str) -> None:
    """Raise `UsageError` inside an epoch's steps, where a state would be half of something."""
    loop_state.position.require_same_on_every_rank(call)
    if loop_state.position.region is not Region.SCRIPT:
        raise UsageError(
            f"{call} was called inside the loop over run.steps, where an epoch is half done.",
            "Call it after the loop, at the end of the epoch.",
        )


def place_of(run: RunState, path: str | os.PathLike[str]) -> Path:
    """Where a file of the run is. Under `verify` and `bench` runs must not touch the user's, nor see each other's."""
    record = run.config.environment.settings.saving if run.config.environment.settings is not None else None
    if record is not None and Path(path).parent == Path(record.folder):
        return Path(path)
    if (run.components.recorder is not None or run.components.meter is not None) and run.config.folder is not None:
        name = f"state-{digest(os.path.abspath(path))}"  # noqa: PTH100 - a name only
        return put_elsewhere(path, run.config.folder.path / "evidence" / name)
    return Path(path)


def collect(
    run: RunState, extra: Mapping[str, Any], states: Mapping[str, Mapping[Any, Any]], at: Moment | None = None
) -> Contents:
    """Collect this rank's part of the state; `states` are the optimizers' by label.

    Args:
        run: the run.
        extra: what the script names.
        states: the optimizers', by label.
        at: where the run was, if not where it is now.

    Raises:
        UsageError: for what cannot be written, with its name.
    """
    contents = Contents()
    holder = run.components.strategy.holder_of
    models = run.loop_state.prepared.preparations.models(run.loop_state.prepared.preparations.first)
    for label, model in labelled(models, "model"):
        _add_model(contents, run, label, model)
    names = parameter_names(models)
    record = at.counters if at is not None else counters(run, run.loop_state.epoch.inside)
    if record["inside"] is not None:
        add_gradients(contents.files.setdefault(GRADIENTS, TensorSet()), run, names)
    for label, optimizer in optimizers_of(run.loop_state):
        add_optimizer(contents, label, optimizer, states[label], names=names, holder=holder)
    for label, scheduler in schedulers_of(run.loop_state):
        state = scheduler.state_dict() if at is None else at.states[label]
        contents.add(label, state, OTHER_TENSORS)
        contents.documents[label] = {"class": type(scheduler).__name__, "state": contents.documents[label]}
    for name, thing in run.loop_state.prepared.stateful.items():
        contents.add(name, thing.state_dict() if at is None else at.states[name], OTHER_TENSORS)
    for name, thing in extra.items():
        stateful = is_stateful(thing)
        contents.add(name, thing.state_dict() if stateful else thing, OTHER_TENSORS, label=label_of(name))
        contents.documents[label_of(name)] = {"object": stateful, "value": contents.documents[label_of(name)]}
    _add_kept(contents, run, at)
    _add_place(contents, run, dict(record), is_now=at is None)
    if switched := (at.modes if at is not None else run.loop_state.modes()).told():
        contents.add(MODES, switched, OTHER_TENSORS, of_main=True)
    streams = (
        at.streams if at is not None else run.loop_state.resumption.later_streams
    ) or run.components.streams.snapshot()
    contents.add("random numbers", streams, OTHER_TENSORS, of_main=True)
    if record["inside"] is not None and record["inside"]["loop"]:
        body = at.body_streams if at is not None else run.loop_state.epoch.body_streams
        contents.add(BODY_STREAMS, body, OTHER_TENSORS, of_main=True)
    return contents


def _add_model(contents: Contents, run: RunState, label: str, model: nn.Module) -> None:
    """A tensor of several names, such as tied weights, is written under the first."""
    state, tensors = ModelState.of(model), contents.files.setdefault(f"{label}.safetensors", TensorSet())
    tensors.also = {first: [name for name in others if name != FORMAT] for first, *others in state.tied()}
    again = {name for others in tensors.also.values() for name in others}
    for name, tensor in state.tensors.items():
        if name not in again:
            judged = (id(model), name) not in run.loop_state.prepared.began_infinite
            tensors.add(name, tensor, run.components.strategy.holder_of(tensor), judged=judged)
    contents.add(label, state.others, OTHER_TENSORS)


def _add_place(contents: Contents, run: RunState, record: dict[str, Any], *, is_now: bool) -> None:
    """The counters, and what a data set that is iterated keeps itself of its place in the epoch."""
    if (stream := record.pop("stream", None)) is not None:
        contents.add(STREAM, stream, OTHER_TENSORS, of_main=True)
    steps = run.loop_state.epoch.reading() if run.loop_state.epoch.reading is not None else None
    if record["inside"] is not None and is_now and steps is not None:
        record["account"] = {"loader": record["inside"]["loader"], **steps.account()}
    contents.add("the run", record, OTHER_TENSORS, of_main=run.config.mesh.asynchronous)


def _add_kept(contents: Contents, run: RunState, at: Moment | None) -> None:
    """What the script keeps in every state: objects that it tracks, `run.state`, what it reads behind its loops."""
    apart = run.config.mesh.asynchronous
    for name, thing in run.loop_state.prepared.tracked.items():
        label = f"{TRACKED}{name}"
        judged = isinstance(thing, nn.Module) and (id(thing), "") not in run.loop_state.prepared.began_infinite
        contents.add(name, thing.state_dict(), OTHER_TENSORS, label=label, of_main=apart, judged=judged)
        contents.documents[label] = {"class": type(thing).__name__, "state": contents.documents[label]}
    for name, value in (vars(run.loop_state.values) if at is None else at.values).items():
        contents.add(f"{VALUE}{name}", value, OTHER_TENSORS, of_main=apart)
    if left := (at.left if at is not None else run.loop_state.epoch.left):
        contents.add(LEFT, left, OTHER_TENSORS, of_main=True)


def label_of(name: str) -> str:
    """The document for what the script named `name=`; none of lockstep's own labels looks like that."""
    return f"{name}="


def is_stateful(thing: Any) -> bool:
    """Whether it is an object that returns and takes its own state."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def labelled(things: list[Any], kind: str) -> list[tuple[str, Any]]:
    """`model`, or `model1`, `model2` where there are several."""
    return [(f"{kind}{number if len(things) > 1 else ''}", thing) for number, thing in enumerate(things, 1)]


def optimizers_of(loop_state: LoopState) -> list[tuple[str, Optimizer]]:
    """The prepared optimizers by label."""
    return loop_state.prepared.preparations.labelled(OPTIMIZER)


def schedulers_of(loop_state: LoopState) -> list[tuple[str, Any]]:
    """What else `prepare` took that has a state."""
    return loop_state.prepared.preparations.labelled(SCHEDULER)


def write_alone(run: RunState, folder: StateFolder, at: Moment, taken_s: float | None) -> None:
    """Write the state as it was at `at`, without the others; this rank holds all of it.

    Only nodes compare what each has written by SHA-256; on one, nobody else will read it.

    Raises:
        OSError: when it cannot be written.
        EnvironmentFailure: when somebody else is writing there.
    """
    states = {label: one.state for label, one in optimizers_of(run.loop_state)}
    contents, files, not_finite = collect(run, {}, states, at), {}, ""
    folder.begin()
    for file, tensors in sorted(contents.files.items()):
        found = sources([inventory_of(tensors)])
        written, problem = write_tensors(
            folder.stage / file,
            found,
            tensors.tensors,
            AloneTransport(),
            hashes=run.components.transport.nodes is not None,
        )
        if problem:
            raise OSError(errno.ENOSPC, problem)
        files[file] = SavedFile(written["size"], written["sha256"], tuple(sorted(found)))
        not_finite = not_finite or written["not_finite"]
    facts = {**facts_of(run), "step": at.counters["step"]}
    try:
        complete(folder, contents.written(), files, facts, taken_s, not_finite=not_finite)
    except LockstepError as error:
        raise OSError(errno.ENOSPC, str(error)) from error


def facts_of(run: RunState) -> dict[str, Any]:
    """What the bits depend on, and what a person wants to see in the manifest."""
    from_run = {
        "step": run.components.step_timer.step,
        "epochs": len(run.loop_state.epoch.epochs_seen),
        "ranks": run.components.transport.world_size,
    }
    bits = {"lanes": run.config.placement.num_lanes, "threads": run.config.threads, "seed": run.config.seed}
    return {
        **from_run,
        **bits,
        "strategy": run.components.strategy.name,
        **({"without": names} if (names := run.loop_state.lacks) else {}),
        "fingerprint": fingerprint(run.config.device, run.config.threads),
    }


def _agree(
    components: Components, together: Together, contents: Contents, record: dict[str, Any], more: Any
) -> tuple[Found, list[Any]]:
    """Compare what must be equal, and find out who holds what; merges the optimizers' entries into `contents`.

    Returns what each rank reports as `more`, too.
    """
    if components.transport.world_size == 1:
        together.agree()
        return {file: sources([inventory]) for file, inventory in record.items()}, [more]
    mine = {"documents": contents.digests(), "inventory": digest([record, contents.entries]), "more": more}
    everyone = together.agree(mine)
    if label := differing([one["documents"] for one in everyone]):
        raise UsageError(
            f"{label!r} is not the same on every rank, so no single state can be saved.",
            "Save what run.mean, run.tally or run.broadcast returned; step schedulers on every rank.",
        )
    if len({one["inventory"] for one in everyone}) == 1:
        inventories = [record]
    else:
        full = components.transport.all_gather_object([record, contents.entries], SAVE, where())
        inventories = [inventory for inventory, _ in full]
        for label in contents.entries:
            found = {name: entry for _, entries in reversed(full) for name, entry in entries[label].items()}
            listed = [name for group in contents.documents[label]["groups"] for name in group["params"]]
            contents.entries[label] = {name: found[name] for name in listed if name in found}
    found = {file: sources([inventory[file] for inventory in inventories]) for file in record}
    return found, [one["more"] for one in everyone]


def write_now(
    run: RunState,
    folder: StateFolder,
    contents: Contents,
    found: Found,
    record: Sequence[Any] = (),  # noqa: ARG001
) -> str:
    """Give every rank's tensors to rank 0, which writes; return why it could not, on rank 0: a `Write`."""
    is_main, problem, files, not_finite = run.components.transport.rank == 0, "", {}, ""
    if is_main:
        try:
            folder.begin()
        except (OSError, LockstepError) as error:
            problem = str(error)
    for file in sorted(found):
        path = None if problem else folder.stage / file
        written, trouble = write_tensors(path, found[file], contents.files[file].tensors, run.components.transport)
        problem = problem or trouble
        if written:
            files[file] = SavedFile(written["size"], written["sha256"], tuple(sorted(found[file])))
            not_finite = not_finite or written["not_finite"]
    if is_main and not problem:
        try:
            complete(folder, contents.written(), files, facts_of(run), not_finite=not_finite)
        except (OSError, LockstepError) as error:
            problem = str(error)
    if is_main and problem:
        folder.abandon()
    return problem
