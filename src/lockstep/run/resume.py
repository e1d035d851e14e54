"""`run.load_state`: read what `run.save_state` wrote, on any number of ranks; check everything, then change everything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lockstep.checkpoint.exact_json import decode
from lockstep.checkpoint.folder import StateFolder, left_between
from lockstep.checkpoint.manifest import Manifest, damage
from lockstep.checkpoint.model_state import ModelState
from lockstep.checkpoint.optimizer_state import OptimizerPlan, parameter_names
from lockstep.checkpoint.tensor_file import TensorFile
from lockstep.checkpoint.weights_keys import Wanted, differences, fit_of
from lockstep.errors import LockstepError, UsageError
from lockstep.run.parts import Parts
from lockstep.run.state import (
    DOCUMENTS,
    OTHER_TENSORS,
    counters,
    facts_of,
    is_stateful,
    label_of,
    labelled,
    optimizers_of,
    place_of,
    require_between_epochs,
    schedulers_of,
)
from lockstep.transport.caller import where
from lockstep.visible import remark

LOAD = "run.load_state"
OWN = ("the run", "random numbers")


def load_state(
    parts: Parts, path: str | os.PathLike[str], objects: Mapping[str, Any], *, missing_ok: bool
) -> dict[str, Any]:
    """See `Run.load_state`."""
    require_between_epochs(parts, LOAD)
    folder = StateFolder(place_of(parts, path))
    found, problem = None, ""
    try:
        found = folder.read_manifest()
    except LockstepError as error:
        problem = str(error)
    if not _all_found(parts, folder.target, found, problem):
        if missing_ok:
            return {}
        raise UsageError(f"There is no state in {folder.target}. Pass missing_ok=True for a first start.")
    assert found is not None
    place, manifest = found
    # One rank of each node reads every byte; the others believe it.
    _raise_together(parts, damage(place, manifest) if parts.environment.position.local_rank == 0 else "")
    try:
        plan, problem = _Plan(parts, place, objects), ""
    except LockstepError as error:
        problem = str(error)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        problem = f"it is not what lockstep writes ({error!r})."
    _raise_together(parts, f"{place} does not fit this run: {problem}" if problem else "")
    if parts.transport.rank == 0:
        _say_differences(parts, plan, folder, manifest)
    extra = plan.carry_out()
    parts.transport.barrier(LOAD, where())
    return extra


def _all_found(parts: Parts, target: Path, found: tuple[Path, Manifest] | None, problem: str) -> bool:
    """Whether there is a state; raises when ranks see different ones."""
    mine = [problem, found is not None, str(found[1].files) if found else ""]
    told = parts.transport.all_gather_object(mine, LOAD, where())
    if first := next(filter(None, (problem for problem, _, _ in told)), ""):
        raise UsageError(first)
    if any(one != told[0] for one in told):
        having = [rank for rank, (_, there, _) in enumerate(told) if there]
        raise UsageError(
            f"The ranks see different states in {target} (ranks {having} find one). Keep it where every rank can read it."
        )
    return bool(told[0][1])


def _raise_together(parts: Parts, problem: str) -> None:
    told = parts.transport.all_gather_object(problem, LOAD, where())
    if first := next(filter(None, told), ""):
        raise UsageError(first)


def _say_differences(parts: Parts, plan: _Plan, folder: StateFolder, manifest: Manifest) -> None:
    """On standard error: a folder that was left over, and why bits may differ from the undisturbed run."""
    if plan.place != folder.target:
        remark(left_between(folder.target, plan.place))
    now, then = facts_of(parts), manifest.facts
    changed = [
        f"{key} {now[key]}, not {then.get(key)}" for key in ("lanes", "threads", "seed") if now[key] != then.get(key)
    ]
    before = then.get("fingerprint") or {}
    changed += plan.other_loaders()
    changed += [
        f"{key} {value}, not {before.get(key)}"
        for key, value in now["fingerprint"].items()
        if key != "threads" and before.get(key) != value
    ]
    if changed:
        remark(f"the run goes on with {'; '.join(changed)}: the bits may differ from here.")


@dataclass
class _Step:
    """One thing to load, when all are found to fit."""

    label: str
    load: Callable[[], None]


class _Plan:
    """What goes where; made without changing anything.

    Raises:
        UsageError: when the state does not fit what the run prepared.
    """

    def __init__(self, parts: Parts, place: Path, objects: Mapping[str, Any]) -> None:
        self._parts, self.place = parts, place
        text = json.loads((place / DOCUMENTS).read_bytes())
        self._documents, self._entries = text["documents"], text["entries"]
        self._others = TensorFile(place / OTHER_TENSORS)
        self._used: set[str] = set(OWN)
        self._steps: list[_Step] = []
        self._check_number_of_loaders()
        for label, model in labelled(parts.models, "model"):
            self._add_model(label, model)
        names = parameter_names(parts.models)
        for label, optimizer in optimizers_of(parts):
            self._add_optimizer(label, optimizer, names)
        for label, scheduler in schedulers_of(parts):
            self._add(label, scheduler, self._of_class(label, scheduler))
        for label, thing in parts.stateful.items():
            self._add(label, thing, self._document(label))
        for name, thing in objects.items():
            self._add_object(name, thing)
        self.extra = self._values()

    def carry_out(self) -> dict[str, Any]:
        """Load everything; the values that the script had saved."""
        for step in self._steps:
            step.load()
        self._restore_counters(self._decode(self._documents["the run"]))
        self._parts.streams.restore(self._decode(self._documents["random numbers"]), self._parts.ledger.step)
        return self.extra

    def other_loaders(self) -> list[str]:
        """In words, how the run's loaders differ from those of the state."""
        pairs = zip(counters(self._parts)["loaders"], self._documents["the run"]["loaders"], strict=True)
        return [
            f"{now[key]} {words} of loader {number}, not {then[key]}"
            for number, (now, then) in enumerate(pairs, 1)
            for key, words in (("samples", "samples"), ("batch_size", "samples per batch"))
            if now[key] != then[key]
        ]

    def _document(self, label: str) -> Any:
        if label not in self._documents:
            kinds = [name for name in self._documents if name not in OWN]
            raise UsageError(f"the run has {label}, but the state has only {', '.join(kinds)}.")
        self._used.add(label)
        return self._documents[label]

    def _decode(self, value: Any) -> Any:
        return decode(value, lambda name: self._others.get(name).clone())

    def _of_class(self, label: str, thing: Any) -> Any:
        """The state of a scheduler; that of another class would be taken by torch without a word."""
        document, mine = self._document(label), type(thing).__name__
        if document["class"] != mine:
            raise UsageError(f"the {label} was a {document['class']}, but the run prepared a {mine}. Prepare the same.")
        return document["state"]

    def _add(self, label: str, thing: Any, document: Any) -> None:
        self._steps.append(_Step(label, lambda: thing.load_state_dict(self._decode(document))))

    def _check_number_of_loaders(self) -> None:
        saved = len(self._documents["the run"]["loaders"])
        if saved != len(self._parts.loaders):
            raise UsageError(f"it was saved with {saved} prepared loaders, and the run has {len(self._parts.loaders)}.")

    def _add_model(self, label: str, model: Any) -> None:
        others = self._document(label)
        state, file = ModelState.of(model), TensorFile(self.place / f"{label}.safetensors")
        wanted = Wanted(state.tensors, tied=state.tied())
        values: dict[str, Tensor] = {name: file.get(name) for name in file.described}
        fit = fit_of("", values, wanted)
        if problems := differences(fit, wanted, strict=True):
            raise UsageError(f"{label} is another one: {problems}.")
        for name, tensor in state.tensors.items():
            if tensor.dtype != values[name].dtype:
                raise UsageError(
                    f"{name} of {label} is {tensor.dtype} and was saved as {values[name].dtype}. Use the same dtypes, or "
                    f"lockstep.load_weights for the weights alone."
                )
        self._steps.append(_Step(label, lambda: state.place(values, self._decode(others))))

    def _add_optimizer(self, label: str, optimizer: Any, names: Mapping[int, str]) -> None:
        plan = OptimizerPlan(optimizer, self._document(label), self._entries[label], names)
        file = TensorFile(self.place / f"{label}.safetensors")
        self._steps.append(_Step(label, lambda: plan.carry_out(lambda name: file.get(name).clone())))

    def _add_object(self, name: str, thing: Any) -> None:
        if not is_stateful(thing):
            raise UsageError(f"{name}= must be an object with load_state_dict; a saved value comes back in the result.")
        document = self._document(label_of(name))
        if not document["object"]:
            raise UsageError(f"{name}= was saved as a value and not as an object. It comes back in the result.")
        self._add(name, thing, document["value"])

    def _values(self) -> dict[str, Any]:
        """What the script had saved besides objects; raises for what nobody takes."""
        left = {label: document for label, document in self._documents.items() if label not in self._used}
        for label, document in left.items():
            if not label.endswith("="):
                raise UsageError(f"it holds {label!r}, which this run did not prepare. Prepare the same things.")
            if document["object"]:
                raise UsageError(f"it holds the state of an object: pass {label}... to run.load_state.")
        return {label.removesuffix("="): self._decode(document["value"]) for label, document in left.items()}

    def _restore_counters(self, saved: Mapping[str, Any]) -> None:
        parts, ledger = self._parts, self._parts.ledger
        parts.epochs.restore(saved["epochs"])
        ledger.step, ledger.epoch = saved["step"], saved["epoch"]
        ledger.num_losses, ledger.loss = saved["num_losses"], saved["loss"]
        parts.epochs_seen[:] = saved["epochs_seen"]
        parts.resumed = epochs, step = len(parts.epochs_seen), ledger.step
        if parts.transport.rank == 0:
            remark(f"the run goes on after {epochs} epoch{'s' * (epochs != 1)}, step {step}")
        for loader, before in zip(parts.loaders, saved["loaders"], strict=True):
            loader.epochs_begun = before["epochs_begun"]
