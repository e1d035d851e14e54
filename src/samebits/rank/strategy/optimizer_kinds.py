"""Which optimizers may be given part of the parameters, and how fine that part may be.

An optimizer is *element-wise* when the update of an element depends only on that element's gradient and state; then it
may be given chunks. One with statistics over a tensor is given whole parameters, as stages do with all. One that
couples parameters, or that is not known here, is refused unless the script declares what it is; then zero1 gives it whole
parameters (`WholeParameters`). The tables are tested: `tests/unit/rank/strategy/test_optimizer_kinds.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import StrEnum
from types import MethodType
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.machine.torch_private import pytree
from samebits.rank.init.random_streams import states


class UpdatesBy(StrEnum):
    """What an optimizer looks at to update something."""

    ELEMENT = "element"
    PARAMETER = "parameter"
    ITSELF = "itself"
    """At most a parameter, as the script declares; its code is not known here, so it gets the parameters themselves."""


_BY_ELEMENT = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.Adagrad,
    optim.Adadelta,
)
_MORE_BY_ELEMENT = (optim.RMSprop, optim.Rprop, optim.ASGD)
_BY_PARAMETER = (optim.Adafactor, optim.SparseAdam, *((optim.Muon,) if hasattr(optim, "Muon") else ()))

KNOWN: dict[type[Optimizer], UpdatesBy] = {
    **dict.fromkeys((*_BY_ELEMENT, *_MORE_BY_ELEMENT), UpdatesBy.ELEMENT),
    **dict.fromkeys(_BY_PARAMETER, UpdatesBy.PARAMETER),
}

CUTTABLE = (torch.float32, torch.float64)
"""Parameters of other dtypes stay whole: torch's half-precision kernels round differently at the end of a thread's part
than in the middle, and where a part ends depends on the tensor's length (seen with 2 threads, bf16 and fp16)."""


def updates_by(optimizer: Optimizer, declared: str | None, strategy: str = "zero1") -> UpdatesBy:
    """How `optimizer` may be shared out.

    Args:
        declared: what the script declared about optimizers that are not known here.
        strategy: what messages call the strategy that shares out.

    Raises:
        UsageError: for an unknown one about which nothing was declared, and for forms whose bits depend on the sharing.
    """
    for group in optimizer.param_groups:
        _refuse_form(optimizer, group)
    for known, kind in KNOWN.items():
        if _is_like(type(optimizer), known):
            return kind
    if declared is None:
        raise UsageError(
            f"{strategy} does not know whether {type(optimizer).__name__} updates each element, or each parameter, "
            f"independently: each rank updates and sees only its part of the parameters.",
            'Call run.prepare(..., updates_by="element") or updates_by="parameter" (statistics over a tensor). '
            "Optimizers that combine parameters need --strategy ddp: LBFGS, Prodigy, D-Adaptation, SAM, a LAMB that "
            "clips by the norm of all gradients.",
        )
    return UpdatesBy.ITSELF


def _is_like(kind: type[Optimizer], known: type[Optimizer]) -> bool:
    """Whether `kind` is the known class, or inherits from it all that updates."""
    if not issubclass(kind, known):
        return False
    own: Sequence[type] = kind.__mro__[: kind.__mro__.index(known)]
    # torch wraps `step` of every class that is instantiated, so `vars` has one even if the class does not define it.
    return inspect.unwrap(kind.step) is inspect.unwrap(known.step) and not any(
        "_init_group" in vars(one) for one in own
    )


def _refuse_form(optimizer: Optimizer, group: dict[str, Any]) -> None:
    name = type(optimizer).__name__
    if group.get("differentiable"):
        raise UsageError(f"{name}(differentiable=True) needs the whole graph of an update.", "Use --strategy ddp.")
    half = any(parameter.dtype not in CUTTABLE for parameter in group["params"])
    if isinstance(optimizer, optim.SGD) and group.get("fused") and group.get("momentum") and half:
        raise UsageError(
            "SGD(fused=True) with momentum gives different bits each time for half-precision parameters.",
            "Use fused=False.",
        )


def follow_parameters(optimizer: Optimizer) -> None:
    """Move the state to where the parameters are now; call it before a strategy takes the optimizer, and after it has cut."""
    # A state that an earlier run has spread over its ranks: the strategy raises an error for it.
    if type(optimizer.state) not in (dict, defaultdict):
        return
    for group in optimizer.param_groups:
        counts_there = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            # What is on the meta device belongs to another rank.
            if parameter in optimizer.state and parameter.device.type not in {"cpu", "meta"}:
                optimizer.state[parameter] = moved(
                    optimizer.state[parameter], parameter.device, counts_there=counts_there
                )


def moved(state: dict[str, Any], device: torch.device, *, counts_there: bool) -> dict[str, Any]:
    """One parameter's state with its tensors on `device`, as `Optimizer.load_state_dict` would put them.

    Args:
        state: of any form: LBFGS holds lists.
        counts_there: whether kernels count the steps there (`fused`, `capturable`); else `step` stays on the CPU.
    """

    def put(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    return {
        key: value if key == "step" and not counts_there else pytree.tree_map(put, value)
        for key, value in state.items()
    }


class StepWatch:
    """The watch over one optimizer.

    Args:
        optimizer: the object gets a `step` that calls its former one.
        before: called when the engine is about to begin; other hooks have seen the optimizer as it is.
        after: called when the engine is finished.
        undo: called at the end of each outermost `step`, even if it raised.
        strategy: what messages call the strategy by which each rank updates a part.

    A step that drew random numbers raises `UsageError` before `after`, on every rank that has a part of it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        before: Callable[[], None],
        after: Callable[[], None],
        undo: Callable[[], None],
        strategy: str,
    ) -> None:
        self._optimizer, self._strategy = optimizer, strategy
        self._streams: list[list[Tensor]] = []
        """torch's random streams at the start of each running step; a step may call its base class's."""
        self._first = optimizer.register_step_pre_hook(lambda *_: self._begin(before))
        self._last = optimizer.register_step_post_hook(lambda *_: self._end(after))
        self._is_active = True
        self._depth = 0
        """The running calls of `step`: one may call itself."""
        self._inner = optimizer.step
        self._step = MethodType(self._around(undo), optimizer)
        optimizer.step = self._step  # type: ignore[method-assign]

    def _begin(self, before: Callable[[], None]) -> None:
        before()
        self._streams.append(states())

    def _end(self, after: Callable[[], None]) -> None:
        if not all(map(torch.equal, self._streams.pop(), states())):
            raise UsageError(
                f"{type(self._optimizer).__name__}.step() drew random numbers. Under {self._strategy} each rank "
                "updates a part of the parameters, and would draw different ones for it than a single rank does.",
                "Use --strategy ddp.",
            )
        after()

    def _around(self, undo: Callable[[], None]) -> Callable[..., Any]:
        inner = self._inner

        @functools.wraps(inner)
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not self._is_active:
                return inner(*args, **kwargs)
            pre: Any = optimizer._optimizer_step_pre_hooks  # noqa: SLF001 - ordered dictionaries, but torch offers no order
            post: Any = optimizer._optimizer_step_post_hooks  # noqa: SLF001
            # [Note: why our hooks of a step are the innermost]
            # A scheduler, a scaler or the script may register hooks at any time. Before and after ours they see the optimizer
            # with all of its parameters; between ours only the engine runs.
            pre.move_to_end(self._first.id)
            post.move_to_end(self._last.id, last=False)
            self._depth += 1
            try:
                return inner(*args, **kwargs)
            except (AttributeError, TypeError) as error:
                if "NoneType" not in str(error):
                    raise
                raise UsageError(
                    f"{type(optimizer).__name__}.step() failed ({error}). Under {self._strategy} it sees the "
                    "gradients of this rank's part only, and must skip parameters whose grad is None, as torch's "
                    "optimizers do.",
                    "Use --strategy ddp.",
                ) from error
            finally:
                self._depth -= 1
                if not self._depth:
                    self._streams.clear()
                    undo()

        return step

    def remove(self) -> None:
        """Let the optimizer step as before. A scheduler that was made in the meantime still calls through this."""
        self._is_active = False
        self._first.remove()
        self._last.remove()
        if vars(self._optimizer).get("step") is self._step:
            if isinstance(self._inner, MethodType):
                del self._optimizer.step
            else:
                self._optimizer.step = self._inner  # type: ignore[method-assign]
