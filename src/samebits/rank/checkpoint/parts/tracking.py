"""`run.track`: objects of the script that belong to every state, by name; and averages of weights, which `run.prepare` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel

from samebits.errors import UsageError
from samebits.rank.caller import where
from samebits.rank.checkpoint.parts.objects import is_stateful
from samebits.rank.position.exact_json import encode
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.model_state import infinite_parts
from samebits.rank.position.moment import Region
from samebits.rank.position.run_state import RunState
from samebits.rank.transport.together import Together

TRACK = "run.track"


def track(run: RunState, objects: Mapping[str, Any]) -> None:
    """See `Run.track`."""
    run.loop_state.position.require_same_on_every_rank(TRACK)
    together = Together(run.components.transport, TRACK, where())
    together.do(lambda: _check(run.loop_state, objects))
    record = together.agree({name: type(thing).__name__ for name, thing in objects.items()})
    for rank, names in enumerate(record):
        if list(names.items()) != list(record[0].items()):
            raise UsageError(
                f"run.track got {_listed(record[0])} on rank 0, but {_listed(names)} on rank {rank}.",
                "Call it on every rank with the same objects.",
            )
    run.loop_state.prepared.tracked.update(objects)
    modules = [one for one in objects.values() if isinstance(one, nn.Module)]
    run.loop_state.prepared.began_infinite.update((id(one), "") for one in modules if infinite_parts(one))
    if modules:
        run.components.strategy.carry_buffers(
            [(name, one) for name, one in objects.items() if isinstance(one, nn.Module)]
        )


def _check(loop_state: LoopState, objects: Mapping[str, Any]) -> None:
    if not objects:
        raise UsageError("run.track got nothing.", "Name an object: run.track(average=average).")
    if loop_state.position.region is not Region.SCRIPT or loop_state.loop_has_begun or loop_state.resumption.has_looked:
        raise UsageError(
            "run.track was called after the first epoch or step, or after run.load_state, when a state may be loaded "
            "already.",
            "Call it before them, so that a run that resumes finds the object.",
        )
    for name, thing in objects.items():
        _check_one(loop_state, name, thing)
        encode(thing.state_dict(), name, lambda path, _: path)
        _refuse_unsaved(name, thing)


def _check_one(loop_state: LoopState, name: str, thing: Any) -> None:
    if not name.isidentifier():
        raise UsageError(f"run.track got the name {name!r}.", "Use a name such as those of variables.")
    if not is_stateful(thing):
        raise UsageError(
            f"run.track({name}=...) needs an object with state_dict and load_state_dict, but got a "
            f"{type(thing).__name__}.",
            f"Keep a plain value in run.state.{name} instead, or give the class these two methods.",
        )
    if any(thing is taken for taken in loop_state.prepared.taken):
        raise UsageError(
            f"run.track({name}=...) got a {type(thing).__name__} that run.prepare took, so it is in every state.",
            "Leave it out.",
        )
    if name in loop_state.prepared.tracked:
        raise UsageError(f"run.track got the name {name} twice.", "Give each object a name of its own.")
    for other, tracked in loop_state.prepared.tracked.items():
        if tracked is thing:
            raise UsageError(f"run.track({name}=...) got what is tracked as {other} already.", "Leave it out.")


def _refuse_unsaved(name: str, thing: Any) -> None:
    """Raise `UsageError` for metrics of torchmetrics whose states are in no state_dict."""
    for module in thing.modules() if isinstance(thing, nn.Module) else ():
        if not all(vars(module).get("_persistent", {}).values()):
            raise UsageError(
                f"run.track({name}=...) got a {type(module).__name__} that leaves its values out of its state_dict.",
                f"Write `{name}.persistent(True)` before, so that a state holds them.",
            )


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={kind}" for name, kind in names.items())


OF_LIBRARIES = {
    "ema_pytorch": ("EMA", "PostHocEMA", "KarrasEMA"),
    "timm": ("ModelEma", "ModelEmaV2", "ModelEmaV3"),
}
"""Classes of averages, by the package that has them; nothing is imported to know one."""
NAME = "average"


def is_average(thing: Any) -> bool:
    """Whether a thing averages the weights of a model that is trained."""
    return isinstance(thing, AveragedModel) or any(
        kind.__name__ in OF_LIBRARIES.get(kind.__module__.partition(".")[0], ()) for kind in type(thing).__mro__
    )


def take_averages(run: RunState, averages: Sequence[Any]) -> None:
    """Let every state hold these averages, on the rank's device: an average has parameters, and is not trained.

    Collective: call it on every rank. `run.prepare` calls it; names are average, average_2, ….

    Raises:
        UsageError: when one was prepared before, after the first step, or has a state that no state can hold.
    """
    tracked = run.loop_state.prepared.tracked
    for average in averages:
        if any(average is one for one in tracked.values()):
            raise UsageError(
                f"run.prepare got the same {type(average).__name__} twice.", "Prepare everything once, before the loop."
            )
        if isinstance(average, nn.Module):
            average.to(run.config.device)
    if averages:
        number = sum(name.startswith(NAME) for name in tracked)
        names = [f"{NAME}_{count}" if count > 1 else NAME for count in range(number + 1, number + len(averages) + 1)]
        track(run, dict(zip(names, averages, strict=True)))
