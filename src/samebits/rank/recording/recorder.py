"""What `samebits verify` records in a rank: hashes of everything that should not depend on the ranks.

It does so after each step, and at the end. Items are in the order in which a difference would spread: a lane's samples,
loss, gradients, buffers, parameters, optimizer, the script's own. The first word of an item says its kind. `recording`
decides what is recorded when.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.protocol.recording import AT_END, NAN_MARK
from samebits.protocol.run_folder import RunFolder
from samebits.rank.data.device_copies import tensors_in
from samebits.rank.data.order import EpochPlan
from samebits.rank.data.uses import batch_digest
from samebits.rank.recording.evidence_file import EvidenceFile, LaneGradients
from samebits.rank.recording.script_objects import ScriptObjects
from samebits.rank.recording.variables import plain_variables


@dataclass(frozen=True)
class Taken:
    """What the run trains, for the recorder to look at."""

    models: Sequence[nn.Module]
    things: Sequence[Any]
    """Everything that was prepared, and what the run keeps itself."""
    tracked: Mapping[str, Any]
    """What the script named in `run.track`."""
    values: Mapping[str, Any]
    """`run.state`."""
    is_here: Callable[[Tensor], bool]
    """Whether this rank looks after a buffer, not another stage of the model."""
    state_of: Callable[[Optimizer], Mapping[Any, Any]]
    """An optimizer's state by parameter, each one whole. Collective: call it on every rank."""

    @property
    def known(self) -> list[Any]:
        """What need not be looked for in the script's variables."""
        return [*self.things, *self.tracked.values()]


class Recorder:
    """Records the evidence of one rank.

    Args:
        wanted: `steps` (record this many); `to_the_end` (then let the loops end as if the data were over, and record
            the end too; otherwise the script ends there); `plain` (record each lane's first gradients); `capture`
            (write the values of one item at one step); `norms` (write the norm of each tensor too); `reversed` (go
            through each step's lanes backwards); `stops` (end the run when its first state is saved); `goes_on` (record
            what the step after this one begins with); `operators_of` and `values_of` (see `step_operators`).
    """

    def __init__(self, folder: RunFolder, rank: int, wanted: Mapping[str, Any]) -> None:
        self._ending = folder.ending(rank)
        self._recorder = EvidenceFile(
            folder.evidence(rank), wanted.get("capture") or {}, norms=bool(wanted.get("norms"))
        )
        self._last_step: int = wanted.get("steps", sys.maxsize) - self._recorder.steps_before
        self.to_the_end = bool(wanted.get("to_the_end"))
        self.lanes = LaneGradients(folder.evidence(rank).parent) if wanted.get("plain") else None
        self.reverses = bool(wanted.get("reversed"))
        self.stops = bool(wanted.get("stops"))
        self.goes_on: int | None = wanted.get("goes_on")
        self.over = self._last_step <= 0
        """Whether all requested steps are recorded: the script's loops end as if the data were over."""
        self.left: int | None = None
        """A step whose loop the script has left, and that is not recorded yet."""
        self.plans: dict[int, EpochPlan] = {}
        """The first epoch's order of each loader that has trained, by the loader's number."""
        self.began_s = time.monotonic()
        self._flushed = 0
        """The last step whose items are written; what is logged later in the same step is written at once."""
        self._repeats: dict[tuple[int, str], int] = {}
        self._objects = ScriptObjects()
        self._has_initial = False

    @property
    def plain(self) -> bool:
        """Whether this is a run for the row `plain`."""
        return self.lanes is not None

    def initial(self, taken: Taken) -> None:
        """Record, before the first epoch, what the models were made with."""
        if self._has_initial:
            return
        self._has_initial = True
        self._objects.before_lanes(taken.models)
        place = self._recorder.steps_before
        suffix = f" (run {self._recorder.number})" if place else ""
        for kind in ("parameters", "buffers"):
            for name, tensor in named(taken.models, kind):
                if kind == "parameters" or taken.is_here(tensor):
                    self._recorder.tensor_item(place, f"initial {name}{suffix}", tensor)
        self._recorder.flush(place)

    def before_step(self, step: int, taken: Taken) -> None:
        """Record what the step after `step` begins with, where that is wanted. Collective: call it on every rank."""
        if step != self.goes_on:
            return
        self.goes_on = None
        self._record(step, taken, iter(()), "", before="resumed ")
        for name, thing in self._objects.before_step(taken.models, taken.known):
            self._recorder.text_item(f"own {name}", type(thing).__name__)
            self._recorder.state_items(
                step, f"own {name}", thing.state_dict() if hasattr(thing, "state_dict") else thing
            )
        self.variables(step)

    def variables(self, step: int) -> None:
        """Record the plain values in the script's variables."""
        for name, text in plain_variables():
            self._recorder.text_item(f"variable {name}", text)
        self._recorder.flush(step)

    def samples(self, lane: int, batch: Any) -> None:
        """Record the batch that a lane got."""
        self._recorder.text_item(f"samples of lane {lane}", _marked_digest(batch))

    def samples_again(self, item: str, batch: Any) -> None:
        """Record samples that were fetched once more; `batch` may be the text of an error instead."""
        self._recorder.text_item(f"again {item}", batch if isinstance(batch, str) else _marked_digest(batch))

    def after_pass(
        self, step: int, number: int, numbers: tuple[float | None, float], models: Sequence[nn.Module]
    ) -> None:
        """Record a pass whose gradients are complete.

        Args:
            number: counts the step's passes from 1.
            numbers: the loss, and the norm of all gradients.
        """
        loss, norm = numbers
        if self.lanes is not None and step == 1 and number == 1:
            self.lanes.after_first_pass(models)
        self._objects.after_lanes(models)
        suffix = f" (pass {number})" if number > 1 else ""
        self._recorder.number_item(f"loss{suffix}", loss)
        for name, parameter in named(models, "parameters"):
            if parameter.grad is not None:
                self._recorder.tensor_item(self.place(step), f"gradient {name}{suffix}", parameter.grad)
        self._recorder.number_item(f"norm of all gradients{suffix}", norm)

    def logged(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Record what the script logged or averaged; a name that comes again in a step is counted."""
        place = AT_END if self.over else self.place(step)
        for name, value in values.items():
            repeat = self._repeats[place, name] = self._repeats.get((place, name), 0) + 1
            item = f"value {name}" if repeat == 1 else f"value {name} ({repeat})"
            if isinstance(value, Tensor):
                self._recorder.tensor_item(place, item, value)
            else:
                self._recorder.number_item(item, value)
        if self.over or step <= self._flushed:
            self._recorder.flush(place)

    def after_step(self, step: int, taken: Taken) -> None:
        """Record a step whose body is finished. Collective: call it on every rank."""
        self.left = None
        place = self.place(step)
        self._record(place, taken, self._objects.after_step(taken.models, taken.known), "")
        self._repeats = {place: count for place, count in self._repeats.items() if place[0] == self.place(step)}
        self._recorder.flush(place)
        self._flushed = step
        self._recorder.note_last(place)
        self.over = step >= self._last_step

    def at_end(self, taken: Taken) -> None:
        """Record the end of the script. Collective: call it on every rank."""
        suffix = f" (run {self._recorder.number})" if self._recorder.number > 1 else ""
        self._record(AT_END, taken, self._objects.at_end(taken.models, taken.known), suffix)
        self._recorder.flush(AT_END)

    def flush_end(self) -> None:
        """Write what was recorded since the last step."""
        self._recorder.flush(AT_END)

    def note_ending(self, *, reached: bool, has_reversed: bool, why: str = "") -> None:
        """Note how far the script came after its last step."""
        self._ending.write_text(json.dumps({"reached": reached, "why": why, "reversed": has_reversed}))

    def place(self, step: int) -> int:
        """The step among those of all runs that this script makes."""
        return step + self._recorder.steps_before

    def _record(
        self, step: int, taken: Taken, own: Iterator[tuple[str, Any]], suffix: str, *, before: str = ""
    ) -> None:
        for name, buffer in named(taken.models, "buffers"):
            if taken.is_here(buffer):
                self._recorder.tensor_item(step, f"{before}buffer {name}{suffix}", buffer)
        names: dict[int, str] = {}
        for name, parameter in named(taken.models, "parameters"):
            self._recorder.tensor_item(step, f"{before}parameter {name}{suffix}", parameter)
            # A parameter that two models share has the name that it has in the first.
            names.setdefault(id(parameter), name)
        optimizers = [thing for thing in taken.things if isinstance(thing, Optimizer)]
        for number, optimizer in enumerate(optimizers, 1):
            prefix = f"optimizer {number}{suffix}: " if len(optimizers) > 1 or suffix else "optimizer "
            prefix = before + prefix
            self._groups(step, prefix, optimizer.param_groups)
            self._states(step, prefix, taken.state_of(optimizer), names)
        for other in taken.things:
            if not isinstance(other, (Optimizer, nn.Module)) and hasattr(other, "state_dict"):
                self._recorder.state_items(step, f"{before}script {type(other).__name__}{suffix}", other.state_dict())
        for name, thing in taken.tracked.items():
            self._recorder.state_items(step, f"{before}script tracked {name}{suffix}", thing.state_dict())
        self._recorder.state_items(step, f"{before}script run.state{suffix}", taken.values)
        for name, thing in own:
            state = thing.state_dict() if hasattr(thing, "state_dict") else thing
            self._recorder.state_items(step, f"script {name}{suffix}", state)

    def _groups(self, step: int, prefix: str, groups: Sequence[Mapping[str, Any]]) -> None:
        for number, group in enumerate(groups):
            of_group = f" of group {number}" if len(groups) > 1 else ""
            for key, value in group.items():
                if key != "params":
                    self._recorder.state_items(step, f"{prefix}{key}{of_group}", value)

    def _states(self, step: int, prefix: str, states: Mapping[Any, Any], names: Mapping[int, str]) -> None:
        for parameter, state in states.items():
            # Others are another stage's, or were left here by a loaded state.
            if isinstance(parameter, Tensor) and not parameter.is_meta:
                for key, value in state.items():
                    self._recorder.state_items(step, f"{prefix}{key} of {names.get(id(parameter), '?')}", value)


def named(models: Sequence[nn.Module], kind: str) -> Iterator[tuple[str, Any]]:
    """The "parameters" or "buffers" of all models, with the model's name in front where there are several."""
    for number, model in enumerate(models):
        label = f"{type(model).__name__}{number or ''}." if len(models) > 1 else ""
        found = model.named_parameters() if kind == "parameters" else model.named_buffers()
        for name, tensor in found:
            yield f"{label}{name}", tensor


def _marked_digest(batch: Any) -> str:
    floats = [tensor for tensor in tensors_in(batch) or () if tensor.is_floating_point()]
    return batch_digest(batch) + (NAN_MARK if any(bool(tensor.isnan().any()) for tensor in floats) else "")
