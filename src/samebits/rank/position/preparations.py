"""What a run prepared, in order: the number by which states know each thing, the options it was made with, the models' members
and what was switched.

One that is prepared in the middle has the next number, and what it replaces keeps its own. A state says how many there were
before the loop and when it was taken, so a start that has not come to the later ones knows that they are still to come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.rank.position.model_state import ModelState
from samebits.rank.strategy.agreement import bit_sums, packed

MODEL, OPTIMIZER, SCHEDULER, LOADER = KINDS = "model", "optimizer", "scheduler", "loader"


# [Note: options that a state brings back]
# A state brings back the options of its run, so a rate that somebody has edited in the script since has no effect. That is
# reported, from the options that each start made.
DERIVED = frozenset(
    {
        "initial_lr",
        "params",
        "base_lrs",
        "last_epoch",
        "_last_lr",
        "_step_count",
        "_get_lr_called_within_step",
        "_is_initial",
    }
)
"""What follows from other options, or from the steps made."""

VALUES = "run.state"
"""The label of its first values."""
Groups = list[dict[str, Any]]
"""Plain values by name, of each group of an optimizer; of a scheduler there is one."""


class MadeOptions:
    """Those of one run, by label: `optimizer1`."""

    def __init__(self) -> None:
        self.by_label: dict[str, Groups] = {}

    def add(self, label: str, thing: Any) -> None:
        """An optimizer or scheduler was prepared."""
        self.by_label[label] = options_of(thing)

    def add_value(self, name: str, value: Any) -> None:
        """`run.state` got a first value."""
        if (plain := _plain(value)) is not None:
            self.by_label.setdefault(VALUES, [{}])[0][name] = plain

    def overridden(self, saved: Any) -> list[OtherOption]:
        """What this start made with other options than the run did of whose `by_label` is `saved`.

        Raises:
            ValueError: for what samebits does not write.
        """
        found = []
        for label, groups in saved.items():
            mine = self.by_label.get(label, [])
            if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
                raise ValueError(groups)
            for number, (own, theirs) in enumerate(zip(mine, groups, strict=False)):
                of = f"{label} (group {number})" if len(mine) > 1 else label
                # [Note: a switch that is missing]
                # None is not written, and torch's switches (`fused`, `foreach`) begin with it. Other values are
                # missing on one side where another release of torch has one option more.
                found += [
                    OtherOption(label, of, key, own.get(key), theirs.get(key))
                    for key in sorted(own.keys() | theirs.keys())
                    if repr(own.get(key)) != repr(theirs.get(key))
                    and (
                        (key in own and key in theirs) or (label != VALUES and True in (own.get(key), theirs.get(key)))
                    )
                ]
        return found

    def keep(self, saved: Mapping[str, Groups], fresh: Sequence[str] = ()) -> None:
        """Those of the run that was saved count, but for the names that are `fresh`; let states say so from here on."""
        for label, groups in saved.items():
            mine = self.by_label.get(label)
            if mine is not None:
                own = [*mine, *({} for _ in groups[len(mine) :])]
                self.by_label[label] = [
                    {**theirs, **({key: one[key] for key in fresh if key in one} if may_be_fresh(label) else {})}
                    for one, theirs in zip(own, groups, strict=False)
                ]


@dataclass(frozen=True)
class OtherOption:
    """One that the script gives another value than the state has."""

    label: str
    of: str
    """The label, with the group where there are several."""
    key: str
    own: Any
    theirs: Any

    @property
    def text(self) -> str:
        return f"{self.key}={self.own!r} of {self.of}, which was {self.theirs!r}"


def may_be_fresh(label: str) -> bool:
    """Whether a branch may take an option from the script: a scheduler goes on from its place, with its own."""
    return not label.startswith(SCHEDULER)


def options_of(thing: Any) -> Groups:
    """Plain values that an optimizer's groups, or a scheduler, were made with."""
    groups = thing.param_groups if hasattr(thing, "param_groups") else [thing.state_dict()]
    return [
        {key: plain for key, value in group.items() if key not in DERIVED and (plain := _plain(value)) is not None}
        for group in groups
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):  # the milestones of MultiStepLR
        value = sorted(value.elements())
    if isinstance(value, (list, tuple)):
        return [*value] if {bool, int, float, str}.issuperset(map(type, value)) else None
    return value if type(value) in (bool, int, float, str) else None


@dataclass(frozen=True)
class Late:
    """What a state records of things that came in the middle."""

    first: Mapping[str, int]
    """How many of each kind were prepared before that."""
    made: Mapping[str, int]
    """How many there were when the state was taken."""
    before: Mapping[str, int]
    """How many there were where the body of `run.epochs` began that runs again up to the state's step."""
    grown: Sequence[int]
    """Optimizers, by number, that have more groups than when they were prepared."""

    @classmethod
    def read(cls, saved: Any) -> Late | None:
        """Read `Preparations.late`. Raises ValueError for what samebits does not write."""
        if saved is None:
            return None
        late = cls(saved["first"], saved["made"], saved["before"], saved["grown"])
        counts = [one[kind] for one in (late.first, late.made, late.before) for kind in KINDS]
        numbers = [*counts, *late.grown]
        if not all(type(number) is int and 0 <= number < 1 << 31 for number in numbers):
            raise ValueError(saved)
        return late


@dataclass
class Preparations:
    """Those of one run."""

    things: dict[str, dict[int, Any]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    """By kind and number, from 1; what was replaced is missing."""
    made: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    """The number of the last one."""
    first: dict[str, int] | None = None
    """`made` before the first one that was prepared in the middle; None until then."""
    at_body: dict[str, int] = field(default_factory=dict)
    """`made` where the current body of `run.epochs` began."""
    _new: list[tuple[nn.Module, list[int]]] = field(default_factory=list)
    """Models that came in the middle since the last pass, with sums over their bits."""
    options: MadeOptions = field(default_factory=MadeOptions)
    """Of optimizers and schedulers."""
    _num_groups: dict[int, int] = field(default_factory=dict)
    """The groups of each optimizer when it was prepared."""
    names: dict[int, frozenset[str]] = field(default_factory=dict)
    """Of the tensors in the state of each model then, by the model's identity."""
    _shapes: dict[str, Any] = field(default_factory=dict)
    """Of the parameters of each model then, by its number and their name."""

    def add(self, kind: str, thing: Any, *, is_late: bool) -> None:
        """Number it."""
        if is_late and self.first is None:
            self.first = dict(self.made)
        self.made[kind] += 1
        self.things[kind][number := self.made[kind]] = thing
        if kind in (OPTIMIZER, SCHEDULER):
            self.options.add(f"{kind}{number}", thing)
        if kind == OPTIMIZER:
            self._num_groups[number] = len(thing.param_groups)
        if kind == MODEL:
            if is_late:
                self._new.append((thing, _bits_of(thing)))
            self.names[id(thing)] = frozenset(ModelState.of(thing).tensors)
            for name, parameter in thing.named_parameters():
                self._shapes[f"{number}.{name}"] = parameter.shape

    def remove(self, thing: Any) -> None:
        """It was replaced, and no state has it from here on."""
        for numbered in self.things.values():
            for number in [number for number, one in numbered.items() if one is thing]:
                del numbered[number]

    def holds(self, thing: Any) -> bool:
        """Whether it was prepared and not replaced."""
        for numbered in self.things.values():
            for one in numbered.values():
                if one is thing:
                    return True
        return False

    def labelled(self, kind: str) -> list[tuple[str, Any]]:
        """`optimizer`, or `optimizer1`, `optimizer2` where there were several."""
        several = self.made[kind] > 1
        return [(f"{kind}{number if several else ''}", thing) for number, thing in self.things[kind].items()]

    def models(self, first: Mapping[str, int] | None) -> list[nn.Module]:
        """Those that a state has a file of: one that came in the middle and is part of another now is in that one's.

        `first`: `self.first` of the run that saves or saved the state.
        """
        models = self.things[MODEL]
        if first is None:
            return [*models.values()]
        inside = {id(part) for model in models.values() for part in model.modules() if part is not model}
        return [one for number, one in models.items() if number <= first[MODEL] or id(one) not in inside]

    def late_tensors(self) -> set[int]:
        """Identities of the parameters and buffers of models that came in the middle."""
        number = self.made[MODEL] if self.first is None else self.first[MODEL]
        models = [one for each, one in self.things[MODEL].items() if each > number]
        return {id(tensor) for model in models for tensor in (*model.parameters(), *model.buffers())}

    def late(self, *, runs_again: bool) -> dict[str, Any] | None:
        """What a state records of things that came in the middle; None where none did.

        `runs_again`: whether the current body of `run.epochs` runs again up to its steps when the run resumes.
        """
        grown = [
            number for number, one in self.things[OPTIMIZER].items() if len(one.param_groups) > self._num_groups[number]
        ]
        if self.first is None and not grown:
            return None
        made = dict(self.made)
        before = dict(self.at_body) if runs_again and self.at_body else made
        return {"first": self.first or made, "made": made, "before": before, "grown": grown}

    def refuse_written(self) -> None:
        """Raise `UsageError` if the script wrote to a model after it had been prepared in the middle, before the next lanes.

        A resumed start has loaded the model by then, and would write to it once more.
        """
        for model, bits in self._new:
            if _bits_of(model) != bits:
                raise UsageError(
                    f"{type(model).__name__} was prepared between steps and written to afterwards, which a resumed start "
                    "would do once more.",
                    "Give it its values first, then pass it to run.prepare.",
                )
        self._new.clear()

    def forget_new(self) -> None:
        """A state was loaded into the new models."""
        self._new.clear()

    def unprepared(self) -> str:
        """The name of a parameter that came into a model without `run.prepare`; empty where there is none."""
        models = self.things[MODEL].items()
        late = [one for number, one in models if self.first is not None and number > self.first[MODEL]]
        known = {id(parameter) for model in late for parameter in model.parameters()}
        for number, model in models:
            for name, parameter in model.named_parameters():
                if id(parameter) not in known and self._shapes.get(f"{number}.{name}") != parameter.shape:
                    return str(name)
        return ""


def _bits_of(model: nn.Module) -> list[int]:
    return bit_sums(packed([one.detach() for one in [*model.parameters(), *model.buffers()]]))


def label_in(documents: Any, label: str) -> str:
    """What a state calls `optimizer` or `optimizer1`, which are one."""
    stem = label.rstrip("0123456789")
    names = (stem, f"{stem}1") if label in {stem, f"{stem}1"} else (label,)
    return next((name for name in names if name in documents), label)


_training, _requires_grad = attrgetter("training"), attrgetter("requires_grad")


class Members:
    """The modules, parameters and buffers of `models`, each once for a model; the list may grow."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._tables: list[dict[str, Any]] = []
        self._held: list[Any] = []
        """What the tables held when the members were collected."""
        self.number = 0
        """How often they were collected."""
        self.modules: list[nn.Module] = []
        self.parameters: list[Tensor] = []
        self.buffers: list[Tensor] = []

    def follow(self) -> None:
        """Collect the members anew, if a module, a parameter or a buffer came, went or was replaced."""
        # 40 µs for 300 modules; torch's own iterators over them take 3 ms with cold caches.
        held: list[Any] = list(chain.from_iterable(map(dict.values, self._tables)))
        if self._tables and len(held) == len(self._held) and all(map(is_, held, self._held)):
            return
        self.number += 1
        self.modules = [module for model in self._models for module in model.modules()]
        self._tables = [
            table
            for module in self.modules
            for table in (module._parameters, module._buffers, module._modules)  # noqa: SLF001 - torch's own names
        ]
        self._held = list(chain.from_iterable(map(dict.values, self._tables)))
        self.parameters = [one for model in self._models for one in model.parameters()]
        self.buffers = [one for model in self._models for one in model.buffers()]

    def switches(self) -> tuple[int, list[bool], list[bool]]:
        """What differs if a module was switched between training and evaluation, or a parameter frozen or unfrozen."""
        self.follow()
        return self.number, list(map(_training, self.modules)), list(map(_requires_grad, self.parameters))


@dataclass(frozen=True)
class Modes:
    """Of all prepared models, by name; two are compared to find out what was switched in between."""

    training: Mapping[str, bool] = field(default_factory=dict)
    """Of each module: whether it trains, not evaluates."""
    trained: Mapping[str, bool] = field(default_factory=dict)
    """Of each parameter: whether it needs a gradient, is not frozen."""

    @classmethod
    def of(cls, models: Sequence[nn.Module]) -> Modes:
        """As they are."""
        return cls(
            {name: module.training for name, module in _modules(models).items()},
            {name: parameter.requires_grad for name, parameter in _parameters(models).items()},
        )

    def since(self, first: Modes) -> Modes:
        """What is switched another way than at first."""
        return Modes(_unlike(self.training, first.training), _unlike(self.trained, first.trained))

    def overridden_by(self, later: Modes) -> Modes:
        """These, but for what is named there."""
        return Modes({**self.training, **later.training}, {**self.trained, **later.trained})

    def switch(self, models: Sequence[nn.Module]) -> None:
        """Switch what is named here, and leave the rest."""
        modules, parameters = _modules(models), _parameters(models)
        # A module may have gone since.
        for name in self.training.keys() & modules.keys():
            modules[name].training = self.training[name]
        for name in self.trained.keys() & parameters.keys():
            if parameters[name].requires_grad != (trained := self.trained[name]):
                parameters[name].requires_grad_(trained)

    def told(self) -> dict[str, Any]:
        """For a state; empty when nothing is switched another way."""
        named = {"training": dict(self.training), "trained": dict(self.trained)}
        return {key: switches for key, switches in named.items() if switches}

    @classmethod
    def read(cls, saved: Any, models: Sequence[nn.Module], *, may_lack: bool = False) -> Modes | None:
        """What a state records, or None when it records nothing that `told` returns, or names what these models do not have.

        `may_lack`: whether they may lack what it names, because that is still to come.
        """
        if not isinstance(saved, dict) or saved.keys() - {"training", "trained"}:
            return None
        for key, known in (("training", _modules(models)), ("trained", _parameters(models))):
            switches = saved.get(key, {})
            if not isinstance(switches, dict) or (switches.keys() - known.keys() and not may_lack):
                return None
            if not all(type(switch) is bool for switch in switches.values()):
                return None
        return cls(saved.get("training", {}), saved.get("trained", {}))


def _modules(models: Sequence[nn.Module]) -> dict[str, nn.Module]:
    return {f"{number}.{name}": one for number, model in enumerate(models, 1) for name, one in model.named_modules()}


def _parameters(models: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    return {f"{number}.{name}": one for number, model in enumerate(models, 1) for name, one in model.named_parameters()}


def _unlike(now: Mapping[str, bool], first: Mapping[str, bool]) -> dict[str, bool]:
    return {name: switch for name, switch in now.items() if first.get(name, switch) != switch}
