"""An optimizer's state by the names of its parameters, and back; independent of the order of groups and parameters.

torch itself uses numbers, which move when a layer is added or groups are made in another order. Names do not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from samebits.errors import UsageError
from samebits.rank.checkpoint.format.likeness import unlike
from samebits.rank.checkpoint.format.state import State, TensorSet
from samebits.rank.checkpoint.parts.part import Into, Part, Saved, Step
from samebits.rank.position.exact_json import Take, decode, encode
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.preparations import OPTIMIZER, label_in
from samebits.rank.strategy.optimizer_kinds import KNOWN, UpdatesBy

Holder = Callable[[Tensor], int | None]


class Optimizers(Part):
    """Options and state go by the names of parameters."""

    def save(self, into: Into) -> None:
        holder = self._run.components.strategy.holder_of
        for label, one in optimizers_of(self._run.loop_state):
            add_optimizer(into.contents, label, one, into.optimizers[label], names=into.names, holder=holder)

    def check(self, saved: Saved) -> None:
        names = saved.names

        def check(label: str, optimizer: Optimizer) -> None:
            document, label = saved.document(label), label_in(saved.documents, label)
            plan, file = OptimizerPlan(optimizer, document, saved.entries[label], names), saved.tensors(label)
            plan.check(file.get, element_wise=KNOWN.get(type(optimizer)) is UpdatesBy.ELEMENT)
            saved.steps.append(Step(label, lambda: plan.carry_out(lambda name: file.get(name).clone())))

        for label, one in optimizers_of(self._run.loop_state):
            saved.plan_if_it_fits(label, one, check)


def optimizers_of(loop_state: LoopState) -> list[tuple[str, Optimizer]]:
    """The prepared optimizers by label."""
    return loop_state.prepared.preparations.labelled(OPTIMIZER)


def add_optimizer(
    contents: State,
    label: str,
    optimizer: Optimizer,
    state: Mapping[Any, Any],
    *,
    names: Mapping[int, str],
    holder: Holder,
) -> None:
    """Put the optimizer into `contents`: a document for its groups, an entry for each parameter, tensors by name.

    Raises:
        UsageError: for a parameter that is in no prepared model, or a state that cannot be written.
    """
    tensors = contents.files.setdefault(f"{label}.safetensors", TensorSet())
    groups, entries = [], {}
    for number, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        named = {_name(parameter, names, optimizer): parameter for parameter in group["params"]}
        groups.append({"params": list(named), "options": encode(options, f"{label} group {number}", tensors.add)})
        for name, parameter in named.items():
            # On "meta" it is another rank's; what is left of its state here is from before the model was spread.
            if parameter in state and not parameter.is_meta:
                entries[name] = _entry(name, state[parameter], tensors, holder(parameter))
    shared = {key: value for key, value in state.items() if not isinstance(key, Tensor)}
    others = encode(shared, f"{label} state", tensors.add)
    contents.documents[label] = {"class": type(optimizer).__name__, "groups": groups, "others": others}
    contents.entries[label] = entries


def _entry(name: str, state: Mapping[str, Any], tensors: TensorSet, holder: int | None) -> dict[str, Any]:
    """The state of one parameter; its tensors are called `exp_avg/layer.weight`."""

    def keep(path: str, tensor: Tensor) -> str:
        return tensors.add(path, tensor, holder, judged=True)

    return {key: encode(value, f"{key}/{name}", keep) for key, value in state.items()}


def _name(parameter: Tensor, names: Mapping[int, str], optimizer: Optimizer) -> str:
    if id(parameter) not in names:
        raise UsageError(
            f"{type(optimizer).__name__} updates a parameter that is no longer in a prepared model, so its state has "
            "no name.",
            "Give the optimizer the parameters of the prepared model.",
        )
    return names[id(parameter)]


class OptimizerPlan:
    """How a saved state goes into an optimizer; made before anything is changed.

    Raises:
        UsageError: when the saved state is that of another optimizer.
    """

    def __init__(
        self, optimizer: Optimizer, document: Mapping[str, Any], entries: Mapping[str, Any], names: Mapping[int, str]
    ) -> None:
        self._optimizer, self._document, self._entries = optimizer, document, entries
        self._names = [
            [_name(parameter, names, optimizer) for parameter in group["params"]] for group in optimizer.param_groups
        ]
        if document["class"] != type(optimizer).__name__:
            raise UsageError(
                f"The state is that of {document['class']}, but the run prepared {type(optimizer).__name__}.",
                "Prepare the same optimizer, or load the weights alone with samebits.load_weights.",
            )
        self._groups = [self._saved_group(number) for number in range(len(self._names))]
        if len(document["groups"]) != len(self._names):
            raise UsageError(
                f"The state has {len(document['groups'])} parameter groups, {type(optimizer).__name__} has "
                f"{len(self._names)}.",
                "Make the same groups, in the same order.",
            )

    def _saved_group(self, number: int) -> Mapping[str, Any]:
        mine = self._names[number]
        same = [group for group in self._document["groups"] if set(group["params"]) == set(mine)]
        if not same:
            saved = {name for group in self._document["groups"] for name in group["params"]}
            strange = [name for name in mine if name not in saved]
            what = f"{strange[0]} is not in the state" if strange else "the groups are divided differently"
            raise UsageError(
                f"Group {number} of {type(self._optimizer).__name__} holds different parameters: {what}.",
                "Put the same parameters into the same groups.",
            )
        group: Mapping[str, Any] = same[0]
        return group

    def check(self, take: Take, *, element_wise: bool) -> None:
        """Decode everything, and compare it with what the optimizer has.

        Args:
            take: returns the tensors by name.
            element_wise: whether it is one of torch's that keep tensors like each parameter, or single numbers.

        Raises:
            UsageError: for a value of another kind.
        """
        kind = type(self._optimizer).__name__
        groups = zip(self._optimizer.param_groups, self._names, self._groups, strict=True)
        for number, (own, names, saved) in enumerate(groups):
            options = decode(saved["options"], take)
            problem = unlike({key: value for key, value in own.items() if key != "params"}, options, f"group {number}")
            states = [decode(self._entries.get(name, {}), take) for name in names]
            if element_wise and not problem:
                problem = _wrong_states(states, names, own["params"], kind) or _wrong_options(
                    type(self._optimizer), options
                )
            if problem:
                raise UsageError(f"{problem}.", "Make the optimizer with the same options.")
        if any(isinstance(key, int) for key in decode(self._document["others"], take)):
            raise UsageError("it holds a state of a parameter that has no name.", "Save it again with run.save_state.")

    def carry_out(self, take: Take) -> None:
        """Load; parameters on the meta device get no state. `take` returns the tensors by name."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        index_of = {name: index for index, name in enumerate(name for group in self._names for name in group)}
        wanted = {
            index_of[name]: decode(entry, take)
            for name, entry in self._entries.items()
            if name in index_of and not parameters[index_of[name]].is_meta
        }
        others = decode(self._document["others"], take)
        groups = []
        for own, names, saved in zip(self._optimizer.param_groups, self._names, self._groups, strict=True):
            options = {key: value for key, value in own.items() if key != "params"}
            options |= _on_device_of(options, decode(saved["options"], take))
            groups.append({**options, "params": [index_of[name] for name in names]})
        self._optimizer.load_state_dict({"state": {**wanted, **others}, "param_groups": groups})
        for index, state in wanted.items():
            self._keep_exact(parameters[index], state)

    def _keep_exact(self, parameter: Tensor, saved: Mapping[str, Any]) -> None:
        """Put back the saved state as it was: torch casts it to its parameter's dtype and lays it out its own way."""
        state = self._optimizer.state[parameter]
        for key, value in saved.items():
            if isinstance(value, Tensor) and isinstance(state.get(key), Tensor):
                present = state[key]
                if value.shape == parameter.shape:
                    exact = torch.empty_like(parameter, dtype=value.dtype, device=present.device, requires_grad=False)
                    state[key] = exact.copy_(value)
                elif present.dtype != value.dtype:
                    state[key] = value.to(present.device)


def _wrong_states(
    states: Sequence[Mapping[str, Any]], names: Sequence[str], parameters: Sequence[Tensor], kind: str
) -> str:
    """What an element-wise optimizer does not keep for the parameters of a group, in words; empty when all is well."""
    keys = {frozenset(state) for state in states if state}
    if len(keys) > 1:
        return f"the parameters of a group have different kinds of state: {kind} keeps the same for each"
    for name, parameter, state in zip(names, parameters, states, strict=True):
        for key, value in state.items():
            if not _belongs_to(key, value, parameter):
                return f"{key} of {name} in the state is not what {kind} keeps"
    return ""


def _belongs_to(key: str, value: Any, parameter: Tensor) -> bool:
    if key == "step":
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        return type(number) in (int, float) and number >= 0
    if not isinstance(value, Tensor):
        return value is None and key == "momentum_buffer"
    if value.shape == parameter.shape:
        return (value.is_floating_point(), value.is_complex()) == (
            parameter.is_floating_point(),
            parameter.is_complex(),
        )
    return value.numel() == 1 and value.is_floating_point()


def _wrong_options(kind: type[Optimizer], options: Mapping[str, Any]) -> str:
    """Why the optimizer itself would refuse these; empty if it would not."""
    known = inspect.signature(kind).parameters
    try:
        kind(
            [torch.zeros(1, device="cpu")],
            **{key: value for key, value in options.items() if key in known and key != "params"},
        )
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{kind.__name__} refuses the options of a group ({error})"
    return ""


def _on_device_of(own: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Move a learning rate that is a tensor to where the optimizer has it."""
    return {
        key: value.to(own[key].device) if isinstance(value, Tensor) and isinstance(own.get(key), Tensor) else value
        for key, value in saved.items()
    }


def keep_groups(optimizer: Optimizer) -> list[RemovableHandle]:
    """Keep the list of groups and each dict in it through `load_state_dict`, where torch makes new ones.

    A learning rate that is a tensor is kept too. Returns the handles that undo this.
    """
    groups: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []

    def before(optimizer: Optimizer, _state: Mapping[str, Any]) -> None:
        nonlocal groups, kept
        groups, kept = optimizer.param_groups, [*optimizer.param_groups]

    def after(optimizer: Optimizer) -> None:
        for own, new in zip(kept, optimizer.param_groups, strict=True):
            _fill(own, new)
        groups[:] = kept
        optimizer.param_groups = groups

    return [
        optimizer.register_load_state_dict_pre_hook(before, prepend=True),
        optimizer.register_load_state_dict_post_hook(after, prepend=True),
    ]


def _fill(own: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Let `own` hold what `new` does, and no more."""
    loaded = {key: _filled(own.get(key), value) for key, value in new.items()}
    own.clear()
    own.update(loaded)


def _filled(own: Any, new: Any) -> Any:
    """The tensor that is there, with the new value; or what is new, where they differ in more than that."""
    if isinstance(own, Tensor) and isinstance(new, Tensor) and _kind(own) == _kind(new):
        own.detach().copy_(new)
        return own
    return new


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device
