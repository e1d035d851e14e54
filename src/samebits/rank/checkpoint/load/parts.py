"""The parts of a saved state that belong to prepared things, each with where it goes; `plan` loads them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.errors import SamebitsError, UsageError
from samebits.machine.regular_file import read_regular
from samebits.protocol.state_files.manifest import DOCUMENTS, OTHER_TENSORS, Manifest, loads
from samebits.rank.checkpoint.load.likeness import unlike
from samebits.rank.checkpoint.state.collect import BODY_STREAMS, MADE, MODES, ORDER, STREAM, optimizers_of
from samebits.rank.checkpoint.state.gradients import saved_gradients
from samebits.rank.checkpoint.state.optimizer_state import OptimizerPlan, with_references
from samebits.rank.checkpoint.state.tensor_file import TensorFile
from samebits.rank.checkpoint.weights.keys import Wanted, differences, different_ties, fit_of
from samebits.rank.data.stream import SavedStream
from samebits.rank.position.exact_json import decode
from samebits.rank.position.model_state import ModelState
from samebits.rank.position.preparations import OPTIMIZER, Late, Modes, label_in
from samebits.rank.position.run_state import RunState
from samebits.rank.strategy.optimizer_kinds import KNOWN, UpdatesBy

UNCHANGED = "Use a state that has not been changed since run.save_state wrote it."


def checked_gradients(
    run: RunState, file: TensorFile | None, names: Mapping[int, str]
) -> list[tuple[Tensor, Tensor | None]]:
    """What each parameter's gradient becomes; nothing for a state between epochs, which has no file of them."""
    if file is None:
        return []
    known = {names[id(one)]: one for model in run.loop_state.prepared.models for one in model.parameters()}
    found = saved_gradients(file, known, UNCHANGED)
    return [(parameter, found.get(name)) for name, parameter in known.items() if not parameter.is_meta]


def wrong_inside(inside: Any, body_streams: Any, has_gradients: bool) -> str:
    """What does not belong together of a place inside an epoch; empty when all does."""
    if bool(inside) != has_gradients:
        return "its place inside an epoch and its gradients do not belong together"
    if body_streams is not None:
        return wrong_streams(body_streams)
    return "it has no random numbers of the epoch's beginning" if inside and inside["loop"] else ""


def checked_modes(record: Any, models: Sequence[nn.Module], *, may_lack: bool = False) -> Modes:
    """What the script had switched when the state was saved.

    Raises:
        UsageError: when samebits does not write that for these models.
    """
    found = Modes.read(record, models, may_lack=may_lack)
    if found is None:
        raise UsageError("its modes of modules and parameters are not those of these models.", UNCHANGED)
    return found


def saved_order(record: Any) -> Mapping[str, Any] | None:
    """The order of the epoch that a sampler of the script had drawn.

    Raises:
        UsageError: when samebits does not write that.
    """
    if record is None:
        return None
    samples, sizes = record["samples"], record["sizes"]
    is_ours = all(isinstance(one, Tensor) and one.dtype is torch.int64 and one.ndim == 1 for one in (samples, sizes))
    if (
        not is_ours
        or bool((sizes < 0).any())
        or int(sizes.sum()) != len(samples)
        or type(record["batch_size"]) is not int
    ):
        raise UsageError("its order of the epoch is not described the way samebits does it.", UNCHANGED)
    return dict(record)


def saved_stream(record: Any) -> SavedStream | None:
    """How a data set resumes by itself.

    Raises:
        UsageError: when samebits does not write that.
    """
    saved = SavedStream(**record) if record is not None else None
    if saved is not None and not all(type(one) is int and one >= 0 for one in (saved.position, saved.size)):
        raise UsageError("its place of the data set is not described the way samebits does it.", UNCHANGED)
    return saved


def unfit(place: Path, problem: str, fix: str) -> UsageError:
    """Say that the state in `place` is not one of this run."""
    return UsageError(f"{place} does not fit this run: {problem}", fix)


OWN = ("the run", "random numbers", BODY_STREAMS, STREAM, MODES, MADE, ORDER)

PREPARE_IT = "Layers that come between steps go through run.prepare: `model.head = run.prepare(nn.Linear(64, 10))`."


@dataclass
class Step:
    """One thing to load, once all are found to fit."""

    label: str
    load: Callable[[], None]


class PlannedParts:
    """Reads them, and plans their steps; changes nothing."""

    def __init__(self, run: RunState, place: Path, manifest: Manifest) -> None:
        self._run, self.place, self._manifest = run, place, manifest
        text = loads(read_regular(self._file(DOCUMENTS), follow=False))
        self._documents, self._entries = text["documents"], text["entries"]
        self._others = TensorFile(self._file(OTHER_TENSORS))
        self._used: set[str] = set(OWN)
        self._models: list[Step] = []
        self._rest: list[Step] = []
        self._planned: set[int] = set()
        """Identities of optimizers and schedulers whose part is planned."""
        self._files = {name: TensorFile(place / name) for name in manifest.files if name.endswith(".safetensors")}
        self.counters = self._decode(self._documents["the run"])
        self._late = Late.read(self.counters.get("late"))
        self._waits = bool(self._awaited())

    def _plan_if_it_fits(self, label: str, thing: Any, add: Callable[[str, Any], None]) -> None:
        """Plan it, unless that is done, the run that was saved had replaced it, or it does not fit before it has grown."""
        if id(thing) in self._planned or self._was_replaced(label):
            return
        try:
            add(label, thing)
        except UsageError:
            if not self._waits:
                raise
        else:
            self._planned.add(id(thing))

    def _was_replaced(self, label: str) -> bool:
        """Whether the run that was saved had replaced the object of this number."""
        number = int(label[len(kind_of(label)) :] or 1)
        is_gone = label_in(self._documents, label) not in self._documents
        return self._late is not None and is_gone and number <= self._late.made[kind_of(label)]

    def _awaited(self) -> list[str]:
        """What this start has not made yet, in words."""
        if self._late is None:
            return []
        mine = self._run.loop_state.prepared.preparations
        awaited = [
            f"{kind}{number}"
            for kind, made in self._late.made.items()
            for number in range(mine.made[kind] + 1, made + 1)
        ]
        for number in self._late.grown:
            label, own = label_in(self._documents, f"{OPTIMIZER}{number}"), mine.things[OPTIMIZER].get(number)
            if own is not None and len(own.param_groups) < len(self._documents[label]["groups"]):
                awaited.append(f"a parameter group of {label}")
        return awaited

    def _load(self, steps: Sequence[Step]) -> None:
        # [Note: why optimizers come last]
        # A scheduler may write to the rates of its optimizer, whose own part of the state says what they are.
        for step in sorted(steps, key=lambda one: kind_of(one.label) == OPTIMIZER):
            try:
                step.load()
            except UsageError as error:
                raise unfit(self.place, error.problem, error.fix) from None
            except SamebitsError:
                raise
            except Exception as error:
                problem = f"the {step.label} does not accept its state ({type(error).__name__}: {error})."
                raise unfit(self.place, problem, "Prepare the same things; no model was changed.") from error

    def _file(self, name: str) -> Path:
        if name not in self._manifest.files:
            raise UsageError(f"its manifest does not name {name}.", UNCHANGED)
        return self.place / name

    def _tensors(self, label: str) -> TensorFile:
        name = f"{label_in(self._documents, label)}.safetensors"
        self._file(name)
        return self._files[name]

    def _document(self, label: str) -> Any:
        label = label_in(self._documents, label)
        if label not in self._documents:
            kinds = [name for name in self._documents if name not in OWN]
            raise UsageError(
                f"the run has {label}, but the state has only {', '.join(kinds)}.", "Prepare the same things."
            )
        self._used.add(label)
        return self._documents[label]

    def _decode(self, value: Any) -> Any:
        return decode(value, lambda name: self._others.get(name).clone())

    def _add(self, label: str, thing: Any, state: Any, own: Any = None) -> None:
        """Load `state` into `thing`; where `own`, its present one, refers to an optimizer's group, it does so afterwards."""
        state, live = with_references(own, state, [one for _, one in optimizers_of(self._run.loop_state)])
        # a copy: objects keep what they are given, and it may be loaded again
        self._rest.append(Step(label, lambda: thing.load_state_dict(copy.deepcopy(state, dict(live)))))

    def _like(self, label: str, own: Any, saved: Any, **rules: bool) -> Any:
        if problem := unlike(own, saved, label, **rules):
            raise UsageError(f"{problem}.", "Prepare the same things.")
        return saved

    def _add_model(self, label: str, model: Any) -> None:
        others = self._decode(self._document(label))
        state, file = ModelState.of(model), self._tensors(label)
        wanted = Wanted(state.tensors, tied=state.tied())
        values: dict[str, Tensor] = {name: file.get(name) for name in file.described}
        if self._waits:
            values = {name: value for name, value in values.items() if _is_alike(state.tensors.get(name), value)}
            self._models.append(Step(label, lambda: state.place(values)))
            return
        fit = fit_of("", values, wanted)
        if problems := differences(fit, wanted, strict=True):
            raise UsageError(
                f"{label} is a different one: {problems}.",
                f"Prepare the same model, or choose another name or folder to begin anew. {PREPARE_IT}",
            )
        for name, tensor in state.tensors.items():
            if tensor.dtype != values[name].dtype:
                raise UsageError(
                    f"{name} of {label} is {tensor.dtype} but was saved as {values[name].dtype}.",
                    "Use the same dtypes, or samebits.load_weights for the weights alone.",
                )
        if pair := different_ties(values, wanted.tied):
            raise UsageError(
                f"{' and '.join(pair)} of {label} are one tensor in this script, and have different values in the state.",
                "Prepare the model that was saved, or choose another name or folder to begin anew.",
            )
        self._like(label, state.others, others)
        # one whose state_dict is made by code of its own may refuse, and so comes first
        place = len(self._models) if state.is_plain else 0
        self._models.insert(place, Step(label, lambda: state.place(values, others)))

    def _add_optimizer(self, label: str, optimizer: Optimizer, names: Mapping[int, str]) -> None:
        document, label = self._document(label), label_in(self._documents, label)
        plan = OptimizerPlan(optimizer, document, self._entries[label], names)
        file = self._tensors(label)
        plan.check(file.get, element_wise=KNOWN.get(type(optimizer)) is UpdatesBy.ELEMENT)
        self._rest.append(Step(label, lambda: plan.carry_out(lambda name: file.get(name).clone())))

    def _add_scheduler(self, label: str, scheduler: Any) -> None:
        document = self._document(label)
        self._add_scheduler_state(label, scheduler, document["class"], self._decode(document["state"]))

    def _add_scheduler_state(self, label: str, scheduler: Any, kind: str, saved: Any) -> None:
        """Refuse the state of another class: torch takes it without a word, and lets it replace methods."""
        mine = type(scheduler).__name__
        if kind != mine:
            raise UsageError(f"the {label} was a {kind}, but the run has a {mine}.", "Use the same one.")
        own = scheduler.state_dict()
        state = self._like(label, own, saved, may_be_unset=True)
        if strange := [key for key in state if key == "optimizer" or callable(getattr(type(scheduler), key, None))]:
            raise UsageError(
                f"{label}.{strange[0]} is not part of the state of a {mine}.", "Use the scheduler that was saved."
            )
        self._add(label, scheduler, state, own)


def kind_of(label: str) -> str:
    return label.rstrip("0123456789")


def _is_alike(own: Tensor | None, value: Tensor) -> bool:
    return own is not None and (own.shape, own.dtype) == (value.shape, value.dtype)


MERSENNE_WORDS = 624
"""NumPy trusts the position in a state, and would read beyond its table."""


def wrong_streams(saved: Any) -> str:
    """What is wrong with them, in words; empty when nothing is."""
    try:
        torch.Generator().set_state(saved["torch"])
        own = saved["numpy"]["state"]
        if not 0 <= own["pos"] <= MERSENNE_WORDS or own["key"].shape != (MERSENNE_WORDS,):
            return "its random state of NumPy is not valid"
        np.random.RandomState().set_state(saved["numpy"])
        random.Random().setstate(saved["python"])  # noqa: S311 - no secrets
        of_gpus = [*filter(lambda one: one is not None, (saved["device"], *saved.get("devices", [])))]
        if not all(isinstance(one, Tensor) and one.dtype is torch.uint8 for one in of_gpus):
            return "its random state of the device is not valid"
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        return f"its random state is not valid ({str(error).partition(chr(10))[0]})"
    return "" if isinstance(saved, Mapping) else "its random states are not a dictionary"
