"""What the script keeps in every state: objects with a state of their own, by name, and values.

Those of the run itself (the loss scale), those that the script names at `run.save_state`, those that `run.track` named, `run.state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from samebits.errors import UsageError
from samebits.rank.checkpoint.parts.part import Into, Part, Saved, like
from samebits.rank.checkpoint.parts.schedulers import check_scheduler
from samebits.rank.position.kept_values import restore

TRACKED, VALUE = "tracked ", "run.state."
"""What labels of tracked objects and of values begin with."""


class Objects(Part):
    """All four kinds."""

    def save(self, into: Into) -> None:
        prepared, at, apart = self._run.loop_state.prepared, into.at, self._run.config.mesh.asynchronous
        for name, thing in prepared.stateful.items():
            into.add(name, thing.state_dict() if at is None else at.states[name])
        for name, thing in into.extra.items():
            stateful, label = is_stateful(thing), label_of(name)
            into.add(name, thing.state_dict() if stateful else thing, label=label)
            into.contents.documents[label] = {"object": stateful, "value": into.contents.documents[label]}
        for name, thing in prepared.tracked.items():
            judged = isinstance(thing, nn.Module) and (id(thing), "") not in prepared.began_infinite
            state = at.tracked[name] if at is not None and name in at.tracked else thing.state_dict()
            into.add_object(f"{TRACKED}{name}", thing, state, name=name, of_main=apart, judged=judged)
        for name, value in (vars(self._run.loop_state.values) if at is None else at.values).items():
            into.add(f"{VALUE}{name}", value, of_main=apart)

    def check(self, saved: Saved) -> None:
        prepared = self._run.loop_state.prepared
        for label, thing in prepared.stateful.items():
            state = saved.decode(saved.document(label))
            saved.add(label, thing, like(label, thing.state_dict(), state, all_keys=True))
        for name, thing in prepared.tracked.items():
            _check_tracked(saved, name, thing)
        for name, thing in saved.objects.items():
            _check_named(saved, name, thing)
        labels = [label for label in saved.documents if label.startswith(VALUE)]
        self._values = {label.removeprefix(VALUE): saved.decode(saved.document(label)) for label in labels}
        self.extra = _extra(saved)
        """What the script saved besides objects."""

    def leave(self, names: Sequence[str]) -> None:
        """Leave these values as the script has made them."""
        self._values = {name: value for name, value in self._values.items() if name not in names}

    def load(self) -> None:
        """Take the values; the objects have loaded their states."""
        restore(self._run.loop_state.values, self._values)


def _check_tracked(saved: Saved, name: str, thing: Any) -> None:
    """What is new begins as the script made it; what only the state has is refused in `_extra`, or it would be lost."""
    label = f"{TRACKED}{name}"
    if label not in saved.documents:
        saved.new.append(name)
        return
    document = saved.document(label)
    state = saved.decode(document["state"])
    if isinstance(thing, LRScheduler):
        check_scheduler(saved, label, thing, document["class"], state)
    else:
        saved.add(label, thing, state, thing.state_dict())


def _check_named(saved: Saved, name: str, thing: Any) -> None:
    if not is_stateful(thing):
        raise UsageError(
            f"{name}= must be an object with load_state_dict.",
            "Leave out what was saved as a value: it comes back in the result.",
        )
    document = saved.document(label_of(name))
    if not document["object"]:
        raise UsageError(
            f"{name}= was saved as a value, not as an object.", "Leave it out: it comes back in the result."
        )
    saved.add(name, thing, saved.decode(document["value"]))


def _extra(saved: Saved) -> dict[str, Any]:
    """What the script saved besides objects; raise for what nothing takes."""
    left = {label: document for label, document in saved.documents.items() if label not in saved.used}
    for label, document in left.items():
        if label.startswith(TRACKED):
            name = label.removeprefix(TRACKED)
            raise UsageError(
                f"it holds {name!r}, which this script does not track.",
                f"Add run.track({name}=...) before it is loaded.",
            )
        if not label.endswith("="):
            raise UsageError(f"it holds {label!r}, which this run did not prepare.", "Prepare the same things.")
        if document["object"]:
            raise UsageError("it holds the state of an object.", f"Pass {label}... to run.load_state.")
    return {label.removesuffix("="): saved.decode(document["value"]) for label, document in left.items()}


def label_of(name: str) -> str:
    """The document for what the script named `name=`; none of samebits's own labels looks like that."""
    return f"{name}="


def is_stateful(thing: Any) -> bool:
    """Whether it is an object that returns and takes its own state."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
