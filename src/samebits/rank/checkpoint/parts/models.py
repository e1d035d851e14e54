"""Models, each with a file of its own; and what the script had switched of them between training and evaluation, frozen and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.rank.checkpoint.format.state import TensorSet
from samebits.rank.checkpoint.format.tensor_file import FORMAT
from samebits.rank.checkpoint.parts.part import MODES, UNCHANGED, Into, Part, Saved, like
from samebits.rank.checkpoint.weights.keys import Wanted, differences, different_ties, fit_of
from samebits.rank.position.model_state import ModelState, refuse_renamed
from samebits.rank.position.preparations import MODEL
from samebits.rank.position.preparations import Modes as Switched
from samebits.rank.position.run_state import RunState

PREPARE_IT = "Layers that come between steps go through run.prepare: `model.head = run.prepare(nn.Linear(64, 10))`."


class Models(Part):
    """Their parameters and buffers."""

    def __init__(self, run: RunState) -> None:
        super().__init__(run)
        self._places: list[Callable[[], None]] = []

    def save(self, into: Into) -> None:
        for label, model in labelled(into.models):
            self._save(into, label, model)

    def _save(self, into: Into, label: str, model: nn.Module) -> None:
        """A tensor of several names, such as tied weights, is written under the first."""
        prepared, holder_of = self._run.loop_state.prepared, self._run.components.strategy.holder_of
        state, tensors = ModelState.of(model), into.contents.files.setdefault(f"{label}.safetensors", TensorSet())
        refuse_renamed(label, state, prepared.preparations.names[id(model)], prepared.preparations.late_tensors())
        tensors.also = {first: [name for name in others if name != FORMAT] for first, *others in state.tied()}
        again = {name for others in tensors.also.values() for name in others}
        for name, tensor in state.tensors.items():
            if name not in again:
                judged = (id(model), name) not in prepared.began_infinite
                tensors.add(name, tensor, holder_of(tensor), judged=judged)
        into.add(label, state.others)

    def check(self, saved: Saved) -> None:
        self._places.clear()
        for label, model in labelled(saved.models):
            self._check(saved, label, model)

    def _check(self, saved: Saved, label: str, model: Any) -> None:
        others = saved.decode(saved.document(label))
        state, file = ModelState.of(model), saved.tensors(label)
        wanted = Wanted(state.tensors, tied=state.tied())
        values: dict[str, Tensor] = {name: file.get(name) for name in file.described}
        if saved.waits:
            values = {name: value for name, value in values.items() if _is_alike(state.tensors.get(name), value)}
            self._places.append(lambda: state.place(values))
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
        like(label, state.others, others)
        # one whose state_dict is made by code of its own may refuse, and so comes first
        self._places.insert(len(self._places) if state.is_plain else 0, lambda: state.place(values, others))

    def load(self) -> None:
        for place in self._places:
            place()


class Modes(Part):
    """What was switched another way than before the first step."""

    def save(self, into: Into) -> None:
        if switched := (into.at.modes if into.at is not None else self._run.loop_state.modes()).told():
            into.add(MODES, switched, of_main=True)

    def check(self, saved: Saved) -> None:
        found = Switched.read(saved.own(MODES, {}), self._run.loop_state.prepared.models, may_lack=saved.waits)
        if found is None:
            raise UsageError("its modes of modules and parameters are not those of these models.", UNCHANGED)
        self._found = found

    def load(self) -> None:
        self._run.loop_state.switch(self._found)


def labelled(models: list[nn.Module]) -> list[tuple[str, nn.Module]]:
    """`model`, or `model1`, `model2` where there are several."""
    return [(f"{MODEL}{number if len(models) > 1 else ''}", model) for number, model in enumerate(models, 1)]


def _is_alike(own: Tensor | None, value: Tensor) -> bool:
    return own is not None and (own.shape, own.dtype) == (value.shape, value.dtype)
