"""What another stage has: shape and dtype on the meta device, and a sentence where its values are needed.

A plain meta tensor is no protection: `average.mul_(0.9).add_(parameter)` leaves `average` at 0.9 of itself, and
`F.linear(x, weight)` returns memory that nobody wrote. While a forward is only followed (`ghost`) nothing is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.torch_private import DisableTorchFunctionSubclass, pytree

_DRAW = frozenset(
    [
        "normal_",
        "uniform_",
        "bernoulli_",
        "exponential_",
        "random_",
        "cauchy_",
        "geometric_",
        "log_normal_",
        "bernoulli",
        "rand_like",
        "randn_like",
        "randint_like",
        "normal",
        "poisson",
        "dropout",
        "multinomial",
    ]
)
"""Functions that draw random numbers: on meta they draw none, so that the stages' streams would come apart."""


class Absent(Tensor):
    """What is computed from parameters of other stages.

    Changing it in place does nothing, which is right: its stage does it. Using its values raises `UsageError`.
    """

    parameter_name = ""
    """Of the parameter that it is or was made of; empty for an activation."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        operation = getattr(func, "__name__", str(func))
        name = next(leaf.parameter_name for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Absent))
        with DisableTorchFunctionSubclass():
            if operation in _DRAW:
                raise UsageError(
                    f"{operation} draws random numbers for {name!r}, which another stage holds, so that the stages would "
                    f"draw other ones. Do it before the first step, or use --strategy ddp."
                )
            if any(map(_mixed, _operands(operation, args, kwargs))):
                _refuse(name, operation)
            try:
                result = func(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as error:
                if "meta" in str(error):
                    _refuse(name, operation, error)
                raise
            return pytree.tree_map(lambda value: absent(value, name), result)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        raise UsageError(
            f"{self.parameter_name!r} lies on another stage, so a copy would have the layers of this rank only. Copy the "
            f"model before the first step, or load saved weights into a new one."
        )

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise UsageError(
            f"{self.parameter_name!r} lies on another stage, so a file written here would miss it. Call "
            f"run.save_weights(model, path) or run.save_state(path) on every rank."
        )


class AbsentParameter(Absent, nn.Parameter):
    """A parameter that another stage holds."""

    @staticmethod
    def like(parameter: nn.Parameter, name: str) -> AbsentParameter:
        """Of the same shape, strides and dtype."""
        made = AbsentParameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        made.parameter_name = name
        return made


def _operands(operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[list[Any]]:
    """The values that are computed with each other: lists go element by element through torch's foreach functions."""
    if operation.startswith("_foreach_"):
        lists = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))]
        yield from (list(members) for members in zip_longest(*lists))
        return
    leaves = pytree.tree_leaves((args, kwargs))
    in_place = operation.endswith("_") and (not operation.endswith("__") or operation.startswith(("__i", "__set")))
    if not (in_place and args and isinstance(args[0], Absent)):  # what is written into it is lost, as it should be
        yield leaves


def _mixed(values: Sequence[Any]) -> bool:
    tensors = [value for value in values if isinstance(value, Tensor)]
    return any(isinstance(value, Absent) for value in tensors) and any(not value.is_meta for value in tensors)


def absent(value: Any, name: str = "") -> Any:
    """A meta tensor as `Absent`; anything else as it is."""
    if type(value) is not Tensor or not value.is_meta:
        return value
    made = value.as_subclass(Absent)
    made.parameter_name = name
    return made


def _refuse(name: str, operation: str, cause: Exception | None = None) -> NoReturn:
    if not name:
        raise UsageError(
            f"{operation} needs a value that another stage computed, and that did not go into this stage's first layer in "
            f"the first step's forward. Let forward go the same way in every step and in evaluation, cut elsewhere with "
            f"run.prepare(..., cut=[...]), or use --strategy ddp."
        ) from cause
    raise UsageError(
        f"{operation} needs the values of {name!r}, which another stage holds. What uses a parameter belongs into the "
        f"model's forward, which must use the same parameters in every step; for averages and other uses of a whole model "
        f"take --strategy ddp."
    ) from cause
