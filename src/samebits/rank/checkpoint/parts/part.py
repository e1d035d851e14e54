"""What each part of a state gets to write to and to read from. A part is one file of this room, with both directions in it.

    save    run -> `Into`     on every rank, in the same order, under the names of a single device
    check   `Saved` -> run    everything is decoded and compared with what the run has; nothing changes yet
    load                      what was checked goes into the run

A checksum finds damage, but does not say who wrote a file. So what does not fit in kind or shape is refused by its path while the
models are as they were. `whole` puts the parts together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from samebits.errors import SamebitsError, UsageError
from samebits.machine.regular_file import read_regular
from samebits.protocol.state_files.manifest import DOCUMENTS, OTHER_TENSORS, Manifest, loads
from samebits.rank.checkpoint.format.likeness import unlike
from samebits.rank.checkpoint.format.state import State
from samebits.rank.checkpoint.format.tensor_file import TensorFile
from samebits.rank.position.exact_json import decode
from samebits.rank.position.model_state import single_device_name, unwrapped
from samebits.rank.position.moment import Moment
from samebits.rank.position.preparations import MODEL, OPTIMIZER, Late, label_in
from samebits.rank.position.run_state import RunState

RUN, STREAMS, BODY_STREAMS = "the run", "random numbers", "random numbers of the epoch"
STREAM, ORDER = "place of the data set", "order of the epoch"
MODES, MADE = "modes", "schedulers that nobody prepared"
OWN = (RUN, STREAMS, BODY_STREAMS, STREAM, MODES, MADE, ORDER)
"""Labels of documents that are of no object of the script."""
UNCHANGED = "Use a state that has not been changed since run.save_state wrote it."


class CommandMistake(UsageError):  # noqa: N818 - whose mistake it is
    """The command and a state contradict each other, and the state is sound."""


class Part:
    """One kind of what is in a state. Override all three; who takes its state by itself is loaded by `Saved.load`."""

    def __init__(self, run: RunState) -> None:
        self._run = run

    def save(self, into: Into) -> None:
        """Add it. Raises `UsageError` for what cannot be written, with its name."""

    def check(self, saved: Saved) -> None:
        """Plan how it goes back. Raises `UsageError` for what does not fit; a state of others may raise what decoders raise."""

    def load(self) -> None:
        """Write to the run what was checked last."""


@dataclass
class Into:
    """A state that is being collected, on one rank."""

    run: RunState
    at: Moment | None
    """The place that it is of; None: here."""
    counters: dict[str, Any]
    extra: Mapping[str, Any]
    """What the script named."""
    optimizers: Mapping[str, Mapping[Any, Any]]
    """The states of optimizers by label."""
    contents: State = field(default_factory=State)
    models: list[nn.Module] = field(init=False)
    names: dict[int, str] = field(init=False)
    """See `parameter_names`."""

    def __post_init__(self) -> None:
        preparations = self.run.loop_state.prepared.preparations
        self.models = preparations.models(preparations.first)
        self.names = parameter_names(self.models)

    @property
    def is_inside(self) -> bool:
        """Whether the run is inside an epoch whose steps have begun."""
        return self.counters["inside"] is not None

    def add(self, name: str, value: Any, *, label: str = "", of_main: bool = False, judged: bool = False) -> None:
        """Add a document; see `State.add`."""
        self.contents.add(name, value, OTHER_TENSORS, label=label, of_main=of_main, judged=judged)

    def add_object(self, label: str, thing: Any, state: Any, **rules: Any) -> None:
        """Add the state of an object, with its class."""
        self.add(rules.pop("name", label), state, label=label, **rules)
        self.contents.documents[label] = {"class": type(thing).__name__, "state": self.contents.documents[label]}


@dataclass
class Step:
    """One thing to load, once all are found to fit."""

    label: str
    load: Callable[[], None]


class Saved:
    """A state that was read, and what is planned with it; changes nothing until `load`."""

    def __init__(self, run: RunState, place: Path, manifest: Manifest, objects: Mapping[str, Any]) -> None:
        self.run, self.place, self.manifest, self.objects = run, place, manifest, objects
        text = loads(read_regular(self._file(DOCUMENTS), follow=False))
        self.documents, self.entries = text["documents"], text["entries"]
        self._others = TensorFile(self._file(OTHER_TENSORS))
        self.used: set[str] = set(OWN)
        self.steps: list[Step] = []
        """Load what takes its state by itself: optimizers, schedulers, objects."""
        self.planned: set[int] = set()
        """Identities of optimizers and schedulers whose part is planned."""
        self.new: list[str] = []
        """Names of tracked objects that the state does not have."""
        self.afterwards: list[Callable[[], None]] = []
        """What is done whenever `steps` have loaded."""
        self.files = {name: TensorFile(place / name) for name in manifest.files if name.endswith(".safetensors")}
        self.counters = self.decode(self.documents[RUN])
        self.late = Late.read(self.counters.get("late"))
        self.waits = bool(self.awaited())
        """Whether the run that was saved had made something in the middle that this start has not made yet."""

    @property
    def is_inside(self) -> bool:
        """Whether it was taken inside an epoch."""
        return bool(self.counters.get("inside"))

    @property
    def models(self) -> list[nn.Module]:
        """The models of which it has a file."""
        return self.run.loop_state.prepared.preparations.models(None if self.late is None else self.late.first)

    @property
    def names(self) -> dict[int, str]:
        """See `parameter_names`."""
        return parameter_names(self.models, several=sum(kind_of(label) == MODEL for label in self.documents) > 1)

    def plan_if_it_fits(self, label: str, thing: Any, plan: Callable[[str, Any], None]) -> None:
        """Plan it, unless that is done, the run that was saved had replaced it, or it does not fit before it has grown."""
        if id(thing) in self.planned or self._was_replaced(label):
            return
        try:
            plan(label, thing)
        except UsageError:
            if not self.waits:
                raise
        else:
            self.planned.add(id(thing))

    def _was_replaced(self, label: str) -> bool:
        """Whether the run that was saved had replaced the object of this number."""
        number = int(label[len(kind_of(label)) :] or 1)
        is_gone = label_in(self.documents, label) not in self.documents
        return self.late is not None and is_gone and number <= self.late.made[kind_of(label)]

    def awaited(self) -> list[str]:
        """What this start has not made yet, in words."""
        if self.late is None:
            return []
        mine = self.run.loop_state.prepared.preparations
        awaited = [
            f"{kind}{number}"
            for kind, made in self.late.made.items()
            for number in range(mine.made[kind] + 1, made + 1)
        ]
        for number in self.late.grown:
            label, own = label_in(self.documents, f"{OPTIMIZER}{number}"), mine.things[OPTIMIZER].get(number)
            if own is not None and len(own.param_groups) < len(self.documents[label]["groups"]):
                awaited.append(f"a parameter group of {label}")
        return awaited

    def load(self, since: int = 0) -> None:
        """Take the `steps`, or the newer ones."""
        # [Note: why optimizers come last]
        # A scheduler may write to the rates of its optimizer, whose own part of the state says what they are.
        for step in sorted(self.steps[since:], key=lambda one: kind_of(one.label) == OPTIMIZER):
            try:
                step.load()
            except UsageError as error:
                raise self.unfit(error) from None
            except SamebitsError:
                raise
            except Exception as error:
                problem = f"the {step.label} does not accept its state ({type(error).__name__}: {error})."
                raise unfit(self.place, problem, "Prepare the same things; no model was changed.") from error
        for do in self.afterwards:
            do()

    def unfit(self, error: UsageError) -> UsageError:
        """Say that it is not a state of this run."""
        return unfit(self.place, error.problem, error.fix)

    def _file(self, name: str) -> Path:
        if name not in self.manifest.files:
            raise UsageError(f"its manifest does not name {name}.", UNCHANGED)
        return self.place / name

    def tensors(self, label: str) -> TensorFile:
        """The file of a model or optimizer."""
        name = f"{label_in(self.documents, label)}.safetensors"
        self._file(name)
        return self.files[name]

    def document(self, label: str) -> Any:
        """What it has of an object, which is used herewith; encoded."""
        label = label_in(self.documents, label)
        if label not in self.documents:
            kinds = [name for name in self.documents if name not in OWN]
            raise UsageError(
                f"the run has {label}, but the state has only {', '.join(kinds)}.", "Prepare the same things."
            )
        self.used.add(label)
        return self.documents[label]

    def own(self, label: str, default: Any = None) -> Any:
        """One of `OWN`."""
        return self.decode(self.documents.get(label, default))

    def decode(self, value: Any) -> Any:
        """A value of a document."""
        return decode(value, lambda name: self._others.get(name).clone())

    def add(self, label: str, thing: Any, state: Any, own: Any = None) -> None:
        """Plan to load `state`; where `own`, its present one, refers to an optimizer's group, it does so afterwards."""
        optimizers = self.run.loop_state.prepared.preparations.things[OPTIMIZER].values()
        state, live = with_references(own, state, optimizers)
        # a copy: objects keep what they are given, and it may be loaded again
        self.steps.append(Step(label, lambda: thing.load_state_dict(copy.deepcopy(state, dict(live)))))


def like(label: str, own: Any, saved: Any, **rules: bool) -> Any:
    """`saved`; raise `UsageError` where it is of another kind than `own`, see `unlike`."""
    if problem := unlike(own, saved, label, **rules):
        raise UsageError(f"{problem}.", "Prepare the same things.")
    return saved


def unfit(place: Path, problem: str, fix: str) -> UsageError:
    """Say that the state in `place` is not one of this run."""
    return UsageError(f"{place} does not fit this run: {problem}", fix)


def kind_of(label: str) -> str:
    """`optimizer` of `optimizer2`."""
    return label.rstrip("0123456789")


def parameter_names(models: Sequence[nn.Module], *, several: bool = False) -> dict[int, str]:
    """Names by the identity of the parameter; `2/layer.weight` is in the second of several models.

    `several`: whether there are more, which are still to come.
    """
    names: dict[int, str] = {}
    for number, model in enumerate(models, 1):
        prefix = f"{number}/" if several or len(models) > 1 else ""
        for name, parameter in unwrapped(model).named_parameters():
            names.setdefault(id(parameter), prefix + single_device_name(name))
    return names


def with_references(own: Any, saved: Any, optimizers: Iterable[Optimizer]) -> tuple[Any, dict[int, Any]]:
    """`saved`, but where `own` refers to a group of `optimizers` or their list, that reference; and these by identity.

    A scheduler that keeps `optimizer.param_groups[0]` has it in its state, and would get a copy of it that is dead.
    """
    live: dict[int, Any] = {}
    for optimizer in optimizers:
        for one in (optimizer.param_groups, *optimizer.param_groups, *(g["params"] for g in optimizer.param_groups)):
            live[id(one)] = one
    return _followed(own, saved, live), live


def _followed(own: Any, saved: Any, live: Mapping[int, Any]) -> Any:
    if id(own) in live:
        return own
    if isinstance(own, dict) and isinstance(saved, dict):
        return {key: _followed(own.get(key), value, live) for key, value in saved.items()}
    if type(own) in (list, tuple) and type(own) is type(saved) and len(own) == len(saved):
        return type(saved)(_followed(*pair, live) for pair in zip(own, saved, strict=True))
    return saved
