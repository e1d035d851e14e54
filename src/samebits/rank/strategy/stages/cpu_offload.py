"""Parameters that stay on the host until the model is cut, because all of them do not fit the device.

The first lane runs on the whole model. Where its parameters are on the host, each operation gets copies on the device, which
are loaded when they are needed and evicted for others: in the backward too, where autograd has saved them. Every operation
runs on the device, so the lane has the bits that it would have there. Gradients go to the host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from samebits.machine.torch_private import DisableTorchFunction, dispatching, pytree, run_backward
from samebits.rank.strategy.stages.meta_placeholder import PLACES

SHARE = 0.25
"""The part of the device's free memory that copies may take."""

_ABOUT = frozenset(
    ("size", "dim", "numel", "stride", "is_floating_point", "is_complex", "element_size", "is_contiguous")
)
"""Methods that need no values."""


def fits(model: nn.Module, device: torch.device) -> bool:
    """Whether the device has room for all parameters twice, as when the model is cut, and for their gradients."""
    parameters = sum(one.nbytes for one in model.parameters())
    gradients = sum(one.nbytes for one in model.parameters() if one.requires_grad)
    return 2 * parameters + gradients <= torch.cuda.mem_get_info(device)[0]


class _DeviceCopy:
    """One parameter's copy, whose memory is freed and allocated again, unseen by modes that watch operations."""

    def __init__(self, parameter: nn.Parameter, device: torch.device) -> None:
        with _unseen():
            self.parameter, self.copy = parameter, parameter.to(device)
        self.memory = self.copy.untyped_storage()
        self.place: int = self.memory._cdata  # noqa: SLF001 - stays the same
        self.size = self.memory.nbytes()

    def load(self) -> None:
        with torch.no_grad(), _unseen():
            self.memory.resize_(self.size)
            # Graphs that have the copy must not see this write, so it goes through `.data`.
            self.copy.data.copy_(self.parameter.data)

    def evict(self) -> None:
        with _unseen():
            self.memory.resize_(0)


class HostOffload(TorchFunctionMode):
    """A mode in which the operations of a model on the host run on a device.

    Args:
        model: its buffers are on the device, its parameters on the host.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._parameters = {id(one): (name, one) for name, one in model.named_parameters()}
        largest = max((one.nbytes for _, one in self._parameters.values()), default=0)
        self._room = max(int(SHARE * torch.cuda.mem_get_info(device)[0]), 2 * largest)
        self._copies: dict[tuple[int, bool], _DeviceCopy] = {}
        self._by_memory: dict[int, _DeviceCopy] = {}
        self._present: OrderedDict[int, _DeviceCopy] = OrderedDict()
        """By their memory; the one that was used last comes last."""
        self.names: dict[int, str] = {}
        """The parameter of each copy, by identity."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """A context for a call of the model."""
        with self, saved_tensors_hooks(_same, self._unpacked):
            yield

    def close(self) -> None:
        """Forget all copies; graphs that have some must not be used any more."""
        for copied in self._present.values():
            copied.evict()
        for kept in (self._copies, self._by_memory, self._present, self.names):
            kept.clear()

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # What a checkpoint computes again in the backward must be computed in this mode too.
        if func is Tensor.backward:
            with self:
                return _backward(*args, **kwargs)
        of = args[0] if args and id(args[0]) in self._parameters else None
        name = getattr(func, "__name__", "")
        if of is not None and func in PLACES:
            return PLACES[func](self._device)
        if of is not None and (name in {*_ABOUT, "__set__"} or name.startswith("register_")):
            return func(*args, **kwargs)
        if of is not None and name == "__get__":
            found = func(*args, **kwargs)
            if not isinstance(found, Tensor) or found is of.grad:
                return found
        if of is not None and name.endswith("_") and not name.endswith("__"):
            # The host's parameter is written to, so the device's copy is stale.
            self._forget(of)
            return func(*pytree.tree_map_only(Tensor, Tensor.cpu, tuple(args)), **kwargs)
        in_use: list[_DeviceCopy] = []
        there: Any = pytree.tree_map(lambda leaf: self._there(leaf, in_use), (tuple(args), dict(kwargs)))
        if in_use:
            self._make_room(in_use)
        return func(*there[0], **there[1])

    def _there(self, leaf: Any, in_use: list[_DeviceCopy]) -> Any:
        if id(leaf) not in self._parameters:
            return leaf
        name, parameter = self._parameters[id(leaf)]
        key = (id(leaf), torch.is_grad_enabled() and parameter.requires_grad)
        # Two copies of a parameter: one with a graph that leads to it, and one for operations without gradients.
        copied = self._copies.get(key)
        if copied is None:
            copied = self._copies[key] = _DeviceCopy(parameter, self._device)
            self._by_memory[copied.place] = self._present[copied.place] = copied
            self.names[id(copied.copy)] = name
        self._use(copied)
        in_use.append(copied)
        return copied.copy

    def _forget(self, parameter: Tensor) -> None:
        """Let a parameter's copies be loaded again at the next use."""
        for key in ((id(parameter), False), (id(parameter), True)):
            if key in self._copies and self._copies[key].place in self._present:
                self._present.pop(self._copies[key].place).evict()

    def _use(self, copied: _DeviceCopy) -> None:
        if copied.place not in self._present:
            copied.load()
        self._present[copied.place] = copied
        self._present.move_to_end(copied.place)

    def _make_room(self, in_use: Sequence[_DeviceCopy]) -> None:
        """Evict the least recently used ones, as long as they take more room than they may."""
        taken = sum(copied.size for copied in self._present.values())
        for place, copied in list(self._present.items()):
            if taken <= self._room:
                return
            if not any(copied is one for one in in_use):
                copied.evict()
                del self._present[place]
                taken -= copied.size

    def _unpacked(self, saved: Tensor) -> Tensor:
        with _unseen():
            copied = self._by_memory.get(saved.untyped_storage()._cdata) if saved.is_cuda else None  # noqa: SLF001
            if copied is not None:
                self._use(copied)
                self._make_room([copied])
        return saved


def _backward(
    tensor: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """As `Tensor.backward`, which would leave the mode."""
    gradients = (torch.ones_like(tensor) if gradient is None else gradient,)
    keeps = create_graph if retain_graph is None else retain_graph
    wanted = () if inputs is None else tuple(inputs)
    run_backward((tensor,), gradients, keeps, create_graph, wanted, allow_unreachable=True, accumulate_grad=True)


@contextmanager
def _unseen() -> Iterator[None]:
    with DisableTorchFunction(), dispatching._disable_current_modes():  # noqa: SLF001
        yield


def _same(tensor: Tensor) -> Tensor:
    return tensor
