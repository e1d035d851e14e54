"""What a run puts into its `State`: models, optimizers, schedulers, counters, random streams, and what the script names.

Everything is collected in the same order on every rank, under the names of a single device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.protocol.state_files.manifest import GRADIENTS, OTHER_TENSORS
from samebits.rank.checkpoint.state.gradients import add_gradients
from samebits.rank.checkpoint.state.optimizer_state import add_optimizer, parameter_names
from samebits.rank.checkpoint.state.state import State, TensorSet
from samebits.rank.checkpoint.state.tensor_file import FORMAT
from samebits.rank.checks.loss_gauge import settle_losses
from samebits.rank.data.planned_steps import PlannedSteps
from samebits.rank.data.stream import PreparedStream
from samebits.rank.init.numerics import fingerprint
from samebits.rank.position.epoch_count import InsideEpoch
from samebits.rank.position.exact_json import encode
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.made_schedulers import kept
from samebits.rank.position.model_state import ModelState, refuse_renamed
from samebits.rank.position.moment import Moment
from samebits.rank.position.preparations import OPTIMIZER, SCHEDULER
from samebits.rank.position.run_state import RunState

BODY_STREAMS = "random numbers of the epoch"
MODES = "modes"
TRACKED, VALUE = "tracked ", "run.state."
"""What labels of tracked objects and of values begin with."""
STREAM = "place of the data set"
ORDER = "order of the epoch"
MADE = "schedulers that nobody prepared"


def collect(
    run: RunState, extra: Mapping[str, Any], states: Mapping[str, Mapping[Any, Any]], at: Moment | None = None
) -> State:
    """Collect this rank's part of the state; `states` are the optimizers' by label.

    Raises:
        UsageError: for what cannot be written, with its name.
    """
    contents = State()
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
    _add_made(contents, run.loop_state, at, is_inside=record["inside"] is not None)
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


def _add_model(contents: State, run: RunState, label: str, model: nn.Module) -> None:
    """A tensor of several names, such as tied weights, is written under the first."""
    preparations = run.loop_state.prepared.preparations
    state, tensors = ModelState.of(model), contents.files.setdefault(f"{label}.safetensors", TensorSet())
    refuse_renamed(label, state, preparations.names[id(model)], preparations.late_tensors())
    tensors.also = {first: [name for name in others if name != FORMAT] for first, *others in state.tied()}
    again = {name for others in tensors.also.values() for name in others}
    for name, tensor in state.tensors.items():
        if name not in again:
            judged = (id(model), name) not in run.loop_state.prepared.began_infinite
            tensors.add(name, tensor, run.components.strategy.holder_of(tensor), judged=judged)
    contents.add(label, state.others, OTHER_TENSORS)


def _add_made(contents: State, loop_state: LoopState, at: Moment | None, *, is_inside: bool) -> None:
    """Schedulers that nobody prepared. Which of them still live may differ between ranks, so rank 0's count."""
    made = loop_state.schedulers.record() if at is None else at.states.get(MADE, [])
    if made:
        runs_again = is_inside or (loop_state.epochs.in_body and not loop_state.epochs.trained)
        record = kept(made, loop_state.schedulers.counts(runs_again=False), runs_again=runs_again)
        bodies = loop_state.schedulers.counts(runs_again=runs_again)
        contents.add(MADE, {"bodies": bodies, "made": record}, OTHER_TENSORS, of_main=True)


def _add_place(contents: State, run: RunState, record: dict[str, Any], *, is_now: bool) -> None:
    """The counters, and what a data set that is iterated keeps itself of its place in the epoch."""
    if (stream := record.pop("stream", None)) is not None:
        contents.add(STREAM, stream, OTHER_TENSORS, of_main=True)
    steps = run.loop_state.epoch.reading() if run.loop_state.epoch.reading is not None else None
    if isinstance(steps, PlannedSteps) and record["inside"] is not None and steps.own_order is not None:
        contents.add(ORDER, steps.own_order, OTHER_TENSORS, of_main=True)
    if record["inside"] is not None and is_now and steps is not None:
        record["account"] = {"loader": record["inside"]["loader"], **steps.account()}
    contents.add("the run", record, OTHER_TENSORS, of_main=run.config.mesh.asynchronous)


def _add_kept(contents: State, run: RunState, at: Moment | None) -> None:
    """What the script keeps in every state: objects that it tracks, and `run.state`."""
    apart = run.config.mesh.asynchronous
    for name, thing in run.loop_state.prepared.tracked.items():
        label = f"{TRACKED}{name}"
        judged = isinstance(thing, nn.Module) and (id(thing), "") not in run.loop_state.prepared.began_infinite
        state = at.tracked[name] if at is not None and name in at.tracked else thing.state_dict()
        contents.add(name, state, OTHER_TENSORS, label=label, of_main=apart, judged=judged)
        contents.documents[label] = {"class": type(thing).__name__, "state": contents.documents[label]}
    for name, value in (vars(run.loop_state.values) if at is None else at.values).items():
        contents.add(f"{VALUE}{name}", value, OTHER_TENSORS, of_main=apart)


def label_of(name: str) -> str:
    """The document for what the script named `name=`; none of samebits's own labels looks like that."""
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
        "fingerprint": fingerprint(run.config.device, run.config.threads, run.config.arithmetic.numerics),
    }


def counters(run: RunState, going: InsideEpoch | None, *, with_tallies: bool = True) -> dict[str, Any]:
    """Where the run is; the same on every rank. `going`: where in an epoch whose steps have begun."""
    settle_losses(run)
    step_timer, inside = run.components.step_timer, going or run.loop_state.resumption.goes_on
    return {
        "step": step_timer.step,
        "epoch": step_timer.epoch,
        "num_losses": step_timer.num_losses,
        "loss": step_timer.loss,
        "epochs_seen": list(run.loop_state.epoch.epochs_seen),
        "accounts": list(run.loop_state.epoch.accounts),
        "epochs": run.loop_state.epochs.position(inside=inside is not None),
        "inside": None if inside is None else {**vars(inside)},
        "stream": _stream(run.loop_state) if inside is not None else None,
        **(
            {"late": late}
            if (late := run.loop_state.prepared.preparations.late(runs_again=inside is not None)) is not None
            else {}
        ),
        **({"tallies": run.loop_state.tallies.encode(inside=inside is not None)} if with_tallies else {}),
        "options": run.loop_state.prepared.preparations.options.by_label,
        "loaders": [
            {
                "epochs_begun": loader.epochs_begun - (going is not None and going.loader == number),
                "samples": None if isinstance(loader, PreparedStream) else len(loader.dataset),  # type: ignore[arg-type]
                "batch_size": loader.batch_size,
            }
            for number, loader in enumerate(run.loop_state.prepared.loaders)
        ],
    }


def _stream(loop_state: LoopState) -> dict[str, Any] | None:
    """What the data set itself keeps of its place in the epoch; None where it has no `state_dict`, or an odd one."""
    steps = loop_state.epoch.reading() if loop_state.epoch.reading is not None else None
    saved = loop_state.resumption.goes_on_stream or (steps.saved if steps is not None else None)
    record = None if saved is None else {name: getattr(saved, name) for name in ("state", "position", "size", "after")}
    try:
        encode(record, STREAM, lambda path, _: path)
    except UsageError:
        return None  # it is read from its beginning again
    return record
