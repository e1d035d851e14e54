"""What another stage has: shape and dtype on the meta device, and an error where its values are needed.

A plain meta tensor is no protection: `average.mul_(0.9).add_(parameter)` leaves `average` at 0.9 of itself, and
`F.linear(x, weight)` returns uninitialised memory. While a forward is only followed (`ghost`), nothing is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.machine.torch_private import DisableTorchFunctionSubclass, pytree, swap_tensor_impl

_DRAW_IN_PLACE = (
    "normal_",
    "uniform_",
    "bernoulli_",
    "exponential_",
    "random_",
    "cauchy_",
    "geometric_",
    "log_normal_",
)
_DRAW_ANEW = ("bernoulli", "rand_like", "randn_like", "randint_like", "normal", "poisson", "dropout", "multinomial")
_DRAW = frozenset((*_DRAW_IN_PLACE, *_DRAW_ANEW))
"""Functions that draw random numbers: on meta they draw none, so the stages' streams would diverge."""


PLACES: dict[Any, Callable[[torch.device], Any]] = {
    Tensor.device.__get__: lambda device: device,
    Tensor.is_cuda.__get__: lambda device: device.type == "cuda",  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: lambda device: device.type == "cpu",  # type: ignore[attr-defined]
    Tensor.get_device: lambda device: -1 if device.type == "cpu" else device.index,
}
"""The device that an absent tensor reports: what is made there, a mask or positions, is real."""


_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


def leaves_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """The values of a call; most calls need no search, which takes longer than many operations."""
    if not kwargs and all(isinstance(value, (Tensor, *_PLAIN)) for value in args):
        return args
    leaves: list[Any] = pytree.tree_leaves((args, kwargs))
    return leaves


class MetaPlaceholder(Tensor):
    """A tensor computed from parameters of other stages.

    Changing it in place does nothing, which is right: its stage does it. Using its values raises `UsageError`.
    """

    parameter_name = ""
    """The name of the parameter that it is or was made of; empty for an activation."""
    home: torch.device | None = None
    """The device where a parameter was."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        operation = getattr(func, "__name__", str(func))
        name, home = next(
            (leaf.parameter_name, leaf.home) for leaf in leaves_of(args, kwargs) if isinstance(leaf, MetaPlaceholder)
        )
        if func in PLACES and home is not None:
            return PLACES[func](home)
        with DisableTorchFunctionSubclass():
            if operation in _DRAW:
                raise UsageError(
                    f"{operation} draws random numbers for {name!r}, which another stage holds, so the stages would "
                    "draw different ones.",
                    "Do it before the first step, or use --strategy ddp.",
                )
            is_alone = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
            if not is_alone and any(map(_mixed, _operands(operation, args, kwargs))):
                _refuse(name, operation)
            try:
                result = func(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as error:
                if "meta" in str(error):
                    _refuse(name, operation, error)
                raise
            if isinstance(result, (Tensor, *_PLAIN)):
                return absent(result, name, home)
            return pytree.tree_map(lambda value: absent(value, name, home), result)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        raise UsageError(
            f"{self.parameter_name!r} is on another stage, so a copy would have the layers of this rank only.",
            "Copy the model before the first step, or load saved weights into a new one.",
        )

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise UsageError(
            f"{self.parameter_name!r} is on another stage, so a file written here would not contain it.",
            "Call run.save_weights(model, path) or run.save_state(path) on every rank.",
        )


class AbsentParameter(MetaPlaceholder, nn.Parameter):
    """A parameter that another stage holds."""

    @staticmethod
    def like(parameter: nn.Parameter, name: str, home: torch.device) -> AbsentParameter:
        """Make an absent parameter of the same shape, strides and dtype."""
        made = AbsentParameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        made.parameter_name, made.home = name, home
        return made


def let_go(name: str, parameter: nn.Parameter, home: torch.device) -> None:
    """Make a parameter absent: the same object, on the meta device. Its memory is freed when no graph refers to it.

    Args:
        parameter: other ranks hold it.
        home: the device that it reports.

    Raises:
        UsageError: when something keeps a weak reference to it.
    """
    parameter.grad = None
    other = AbsentParameter.like(parameter, name, home)
    try:
        torch.utils.swap_tensors(parameter, other)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if weakref.getweakrefs(parameter):
            raise UsageError(
                f"Cannot free the memory of {name!r}: something else still holds a reference to it ({error}).",
                "Prepare the model before anything keeps weak references to it.",
            ) from error
        # Graphs of the lane before the cut hold the parameter. They must not be used any more, and say so.
        swap(parameter, other)
        if other.requires_grad:
            other.register_hook(_refuse_old_graph)  # type: ignore[no-untyped-call]


def swap(one: Tensor, other: Tensor) -> None:
    """Swap two tensor objects, as `torch.utils.swap_tensors` does, but even while graphs refer to them.

    The graphs keep the same tensors, which are now the other objects.
    """
    # `torch.utils.swap_tensors` refuses tensors with further references, which a graph's are.
    for attribute in ("__class__", "__dict__"):
        mine, others = getattr(one, attribute), getattr(other, attribute)
        setattr(one, attribute, others)
        setattr(other, attribute, mine)
    swap_tensor_impl(one, other)


def _refuse_old_graph(_: Tensor) -> NoReturn:
    raise UsageError(
        "A backward ran through the lane in which the model was cut into stages, after that lane had ended.",
        "Call run.backward inside the lane, or use --strategy ddp.",
    )


def _operands(operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """The values that are combined with each other: torch's foreach functions take lists element by element."""
    if operation.startswith("_foreach_"):
        lists = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))]
        yield from (list(members) for members in zip_longest(*lists))
        return
    leaves = leaves_of(args, kwargs)
    in_place = operation.endswith("_") and (not operation.endswith("__") or operation.startswith(("__i", "__set")))
    # What is written into an absent tensor is lost, as it should be: its own stage writes it.
    if not (in_place and args and isinstance(args[0], MetaPlaceholder)):
        yield leaves


def _mixed(values: Sequence[Any]) -> bool:
    tensors = [value for value in values if isinstance(value, Tensor)]
    return any(isinstance(value, MetaPlaceholder) for value in tensors) and any(not value.is_meta for value in tensors)


def absent(value: Any, name: str = "", home: torch.device | None = None) -> Any:
    """Return a meta tensor as `MetaPlaceholder`, anything else as it is."""
    if type(value) is not Tensor or not value.is_meta:
        return value
    made = value.as_subclass(MetaPlaceholder)
    made.parameter_name, made.home = name, home
    return made


def _refuse(name: str, operation: str, cause: Exception | None = None) -> NoReturn:
    if not name:
        raise UsageError(
            f"{operation} needs a value that another stage computed and that did not go into this stage's first layer "
            "in the first step's forward.",
            "Let forward take the same path in every step and in evaluation, cut elsewhere with run.prepare(..., "
            "cut=[...]), or use --strategy ddp.",
        ) from cause
    raise UsageError(
        f"{operation} needs the values of {name!r}, which another stage holds.",
        "Use parameters only in the model's forward, and the same ones in every step; for averages and other uses of "
        "a whole model use --strategy ddp.",
    ) from cause
