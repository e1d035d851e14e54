"""A model's forward, done by replicas: what torch's DataParallel does around a model, attached to the model itself.

On GPUs this uses torch.nn.parallel's own functions: each forward copies the model to every device. On the CPU it uses a
thread per replica; the replicas share the parameters, so gradients arrive where they belong and only the buffers are
copied. The first replica has the model's own buffers, so what it writes into them in place stays, as in torch.

Runs in: the rank's main thread; a forward on the CPU in threads of its own, named replica 0, replica 1, ....
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import gather, parallel_apply, replicate
from torch.nn.parallel.scatter_gather import scatter_kwargs

from samebits.errors import UsageError

Share = tuple[tuple[Any, ...], dict[str, Any]]
"""One replica's positional and keyword arguments."""


def scatter_call(args: tuple[Any, ...], kwargs: Mapping[str, Any], count: int) -> list[Share]:
    """Return the arguments of at most `count` replicas: fewer if a tensor has fewer rows, one if there is no argument.

    A batch with fewer rows than replicas has fewer parts than a keyword argument without rows. torch then adds calls
    without a batch, which raise TypeError; here there is one call for each part of the batch.

    Raises:
        UsageError: for a tensor without dimensions.
    """
    positional = [tuple(part) for part in _parts(args, count)] if args else []
    named = [dict(part) for part in _parts(dict(kwargs), count)] if kwargs else []
    if not args or not kwargs:
        return [(part, {}) for part in positional] or [((), part) for part in named] or [((), {})]
    return list(zip(positional, named, strict=False))


def _parts(value: Any, count: int) -> Sequence[Any]:
    """Cut `value` into parts for replicas; the shortest of a container's members decides how many there are."""
    if isinstance(value, Tensor):
        if not value.dim():
            raise UsageError(
                "dp cuts every tensor that the model is called with along dim 0, but one of them has no dimensions.",
                "Pass it as a number, or as a tensor with one row per sample.",
            )
        return value.chunk(count)
    if not isinstance(value, (tuple, list, dict)) or not value:
        return [value] * count
    members = value.values() if isinstance(value, dict) else value
    cut = list(zip(*(_parts(member, count) for member in members), strict=False))
    if isinstance(value, dict):
        return [type(value)(zip(value, part, strict=True)) for part in cut]
    return [_like(value, part) for part in cut]


def gather_outputs(outputs: Sequence[Any]) -> Any:
    """Join the replicas' outputs: tensors along dim 0, scalars to a vector, containers member by member.

    Raises:
        UsageError: for outputs that cannot be joined.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return _join(outputs)
    if first is None:
        return None
    if isinstance(first, dict):
        if any(other.keys() != first.keys() for other in outputs):
            raise UsageError(
                "The replicas of dp returned dictionaries with different keys, so they cannot be joined.",
                "Return the same keys whatever the samples are, or use --strategy ddp.",
            )
        return type(first)((key, gather_outputs([output[key] for output in outputs])) for key in first)
    if isinstance(first, (tuple, list)):
        if any(len(other) != len(first) for other in outputs):
            raise UsageError(
                "The replicas of dp returned collections of different lengths, so they cannot be joined.",
                "Return the same form whatever the samples are, or use --strategy ddp.",
            )
        return _like(first, [gather_outputs(members) for members in zip(*outputs, strict=True)])
    raise UsageError(
        f"dp joins tensors, and tuples, lists and dictionaries of them, but the model returned {type(first).__name__}.",
        "Return tensors from forward.",
    )


def _join(outputs: Sequence[Tensor]) -> Tensor:
    if any(output.dim() for output in outputs):
        return torch.cat(list(outputs))
    warnings.warn(
        "Was asked to gather along dimension 0, but all input tensors were scalars; will instead unsqueeze and return a "
        "vector.",
        stacklevel=2,
    )
    return torch.stack(list(outputs))


def _like(container: Any, members: Sequence[Any]) -> Any:
    if isinstance(container, tuple) and hasattr(container, "_fields"):
        return type(container)(*members)
    return type(container)(members)


class SplitForward:
    """A replacement in `model.__dict__["forward"]`, where `model(...)` finds it; class, hooks and state_dict stay.

    Args:
        devices: one for each replica, at least two; the first one holds the model.
    """

    def __init__(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        self._model, self._devices = model, list(devices)
        self.num_calls = 0

    def hang(self) -> None:
        """Split `model(...)` from here on."""
        self._model.__dict__["forward"] = self

    def take_away(self) -> None:
        """Let `model(...)` run in one piece again."""
        self._model.__dict__.pop("forward", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return all replicas' outputs, joined. A replica's exception is raised here, with the replica's number."""
        self.num_calls += 1
        if self._devices[0].type == "cpu":
            return self._on_threads(args, kwargs)
        return self._on_devices(args, kwargs)

    def _on_threads(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shares = scatter_call(args, kwargs, len(self._devices))
        if len(shares) == 1:
            return type(self._model).forward(self._model, *args, **kwargs)
        copies = replicas(self._model, len(shares))
        return gather_outputs(apply([copy.forward for copy in copies], shares))

    def _on_devices(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cut = zip(*scatter_kwargs(args, kwargs, self._devices), strict=False)
        # torch adds calls without a batch where a keyword argument has more parts; see `scatter_call`.
        shares = [(a, b) for a, b in cut if bool(a) == bool(args) and bool(b) == bool(kwargs)]
        if not shares:
            return type(self._model).forward(self._model, *args, **kwargs)
        positional, named = zip(*shares, strict=True)
        devices = self._devices[: len(shares)]
        copies = replicate(self._model, devices, detach=not torch.is_grad_enabled())
        for copy in copies:
            _unsplit(copy)
        outputs = parallel_apply([copy.forward for copy in copies], positional, named, devices)  # type: ignore[misc]  # any callable does
        return gather(outputs, self._devices[0])


def replicas(model: nn.Module, count: int) -> list[nn.Module]:
    """Copy the model's modules, shallowly, over the same parameters. Buffers of all but the first are copies."""
    modules = list(model.modules())
    made: list[nn.Module] = []
    for number in range(count):
        copies = {id(module): module._replicate_for_data_parallel() for module in modules}  # type: ignore[no-untyped-call]  # noqa: SLF001
        for module in modules:
            copy = copies[id(module)]
            copy._parameters = module._parameters.copy()  # noqa: SLF001
            copy._modules = {name: child and copies[id(child)] for name, child in module._modules.items()}  # noqa: SLF001
            if number:
                copy._buffers = {  # noqa: SLF001
                    name: buffer if buffer is None else buffer.detach().clone()
                    for name, buffer in module._buffers.items()  # noqa: SLF001
                }
        made.append(copies[id(model)])
        _unsplit(made[-1])
    return made


def _unsplit(replica: nn.Module) -> None:
    """Give a replica, and any prepared model inside it, its class's forward."""
    for module in replica.modules():
        if isinstance(module.__dict__.get("forward"), SplitForward):
            del module.__dict__["forward"]


def apply(calls: Sequence[Callable[..., Any]], shares: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
    """Call each function with its share, each in its own thread with this thread's gradient and autocast modes."""
    # Threads end before this returns, because a later fork (a loader worker) would not copy them.
    ambient = _Ambient()
    outputs: list[Any] = [None] * len(calls)
    errors: dict[int, BaseException] = {}

    def work(number: int) -> None:
        args, kwargs = shares[number]
        try:
            with ambient.enter():
                outputs[number] = calls[number](*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - the caller must get it, whatever it is
            errors[number] = error

    threads = [threading.Thread(target=work, args=(number,), name=f"replica {number}") for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        # The first replica's error, whichever thread was faster.
        number, error = min(errors.items())
        error.add_note(f"in replica {number} of {len(calls)} (dp)")
        raise error
    return outputs


class _Ambient:
    """The modes of the thread that made it: torch keeps them per thread."""

    def __init__(self) -> None:
        self._gradients, self._inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._autocast = torch.is_autocast_enabled("cpu")
        self._dtype, self._cached = torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()

    def enter(self) -> ExitStack:
        """Enter a context in which this thread has the same modes."""
        modes = ExitStack()
        modes.enter_context(torch.inference_mode(self._inference))
        modes.enter_context(torch.set_grad_enabled(self._gradients))
        modes.enter_context(
            torch.autocast("cpu", dtype=self._dtype, enabled=self._autocast, cache_enabled=self._cached)
        )
        return modes
