"""Flat memory under parameters and buffers: values can be compared, sent and checked in one piece."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from samebits.machine.torch_private import storage_uses
from samebits.protocol.layout.chunks import aligned_offsets
from samebits.rank.strategy.agreement import INTEGERS, bit_sums
from samebits.rank.strategy.replica.memory import private_zeros
from samebits.rank.transport.channel import is_dense
from samebits.rank.transport.local.native import available, compiled

HAS_COMPILED = available()


@cache
def reader() -> Any:
    """What the compiled loops read tensors with; None where there is none."""
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if not HAS_COMPILED or exchange is None:
        return None
    found = compiled.Reader(exchange)
    return found if compiled.Places(found, [torch.zeros(1, device="cpu")]).is_known else None


class Places:
    """The addresses, shapes and strides of some tensors, as they are now.

    Args:
        tensors: in order.
    """

    def __init__(self, tensors: list[Any]) -> None:
        found = compiled.Places(reader(), tensors) if reader() is not None else None
        self._quick = found if found is not None and found.is_known else None

    def surely_same(self, tensors: list[Any], *, only_addresses: bool = False) -> bool:
        """Whether they are as they were; False means nothing, and the caller looks again.

        Args:
            tensors: the same ones, in the same order.
            only_addresses: whether shapes and strides do not count.
        """
        return self._quick is not None and self._quick.same(tensors, only_addresses)


def surely_apart(tensors: list[Tensor]) -> bool:
    """Whether none is sparse and each ends before the next begins, in the order of memory; False means nothing."""
    return reader() is not None and compiled.are_apart(reader(), tensors)


def surely_hold(tables: list[dict[str, Any]], values: list[Any]) -> bool:
    """Whether some dictionaries hold these objects, in order; False means nothing."""
    return HAS_COMPILED and compiled.hold(tables, values)


class Holders:
    """The references to some tensors and to their memory, as many as there are now.

    Args:
        tensors: a list that must stay as it is.
        flats: whose memory it is.
    """

    def __init__(self, tensors: list[Tensor], flats: Sequence[Tensor]) -> None:
        # [Note: how a gradient that the script holds is found]
        # References to objects find `p.grad` itself: since torch 2.10 an object that C++ refers to has one more reference in
        # Python. References to memory, by torch's own counter, find `p.grad.detach()` and other views.
        self._tensors = tensors
        self._memory = [flat.untyped_storage()._cdata for flat in flats]  # noqa: SLF001 - which names it for the counter
        self._uses = list(map(storage_uses, self._memory))
        self._quick = compiled.Holders(tensors) if HAS_COMPILED else None
        self._counts = list(map(sys.getrefcount, tensors)) if self._quick is None else []

    def same(self) -> bool:
        """Whether there are no further references, as when this was made."""
        if list(map(storage_uses, self._memory)) != self._uses:
            return False
        if self._quick is not None:
            return bool(self._quick.same())
        return list(map(sys.getrefcount, self._tensors)) == self._counts


def alias(flat: Tensor, offset: int, like: Tensor) -> Tensor:
    """Return a tensor over `flat[offset:]` with its own storage and the shape and strides of the dense tensor `like`.

    It gets the values of `like`. Writes show in `flat`, and vice versa.
    """
    # [Note: why tensors over flat memory have storages of their own]
    # A view would share the flat's storage: `torch.save` of one parameter would write all of them, and `copy.deepcopy` copy
    # all of them. What comes back through DLPack has a storage of its own over the same memory.
    # torch exports no tensor that is on another GPU than the current one.
    with torch.cuda.device(flat.device) if flat.is_cuda else nullcontext():
        part = from_dlpack(flat[offset : offset + like.numel()])
    view = part.as_strided(like.shape, like.stride()) if is_dense(like) else part.view(like.shape)
    view.copy_(like.detach())
    return view


DeviceOf = Callable[[Tensor], torch.device]
"""Says where a parameter goes."""

Allocate = Callable[[int, torch.dtype, torch.device], Tensor]
"""Makes a 1-D tensor of zeros from its number of elements, dtype and device."""


@dataclass(frozen=True)
class Segment:
    """Where one tensor is: `flats[flat][offset : offset + size]`."""

    flat: int
    offset: int
    size: int


def lay_out(
    tensors: Sequence[Tensor],
    allocate: Allocate = private_zeros,
    stay: Container[int] = (),
    place: DeviceOf = attrgetter("device"),
) -> tuple[list[Segment], list[Tensor]]:
    """Make a segment for each tensor, and the flat buffers; `place` decides on which device.

    There is a zeroed one for each (dtype, device), in order of first appearance, then one over the memory of each dense
    tensor whose identity is in `stay`.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for number, tensor in enumerate(tensors):
        if id(tensor) not in stay:
            kinds.setdefault((tensor.dtype, place(tensor)), []).append(number)
    segments: dict[int, Segment] = {}
    flats = []
    for flat, ((dtype, device), members) in enumerate(kinds.items()):
        offsets, size = aligned_offsets([tensors[number].numel() for number in members], element_size=dtype.itemsize)
        flats.append(allocate(size, dtype, device))
        segments |= {
            number: Segment(flat, offset, tensors[number].numel())
            for number, offset in zip(members, offsets, strict=True)
        }
    for number, tensor in enumerate(tensors):
        if id(tensor) in stay:
            segments[number] = Segment(len(flats), 0, tensor.numel())
            flats.append(tensor.detach().as_strided((tensor.numel(),), (1,)))
    return [segments[number] for number in range(len(tensors))], flats


Layout = tuple[list[int], list[tuple[int, ...]], list[tuple[int, ...]], list[bool]]
"""Addresses, shapes, strides, and which parameters are trainable."""

Marks = tuple[list[int], list[int], list[bool]]
"""Versions, addresses, and which parameters are trainable."""

_shape, _version, _trainable = attrgetter("shape"), attrgetter("_version"), attrgetter("requires_grad")


def view_in(flat: Tensor, segment: Segment, like: Tensor) -> Tensor:
    """View the elements of `flat` in `segment` with the shape of `like` and, if that is dense, its strides."""
    part = flat[segment.offset : segment.offset + segment.size]
    if is_dense(like):
        return part.as_strided(like.shape, like.stride(), segment.offset)
    return part.view(like.shape)


class PreviousLayout(Protocol):
    """What has placed parameters before: an arena, or a `FlatMove`."""

    def unmoved(self, parameters: Sequence[nn.Parameter]) -> tuple[dict[int, Segment], list[Tensor]]:
        """The segments, by number, of those of `parameters` that are still where they were put, and their flats."""


class ParameterArena:
    """The parameters of all prepared models, each once, in the order of `named_parameters`.

    Args:
        models: (label, module) pairs; names are `label.path`, or `path` for a single model.
        absent: identities of parameters that other ranks hold; they are left out.
        allocate: where the parameters go.
        master: returns, for a flat that `allocate` made, the similar one into which an optimizer writes.
        stay: identities of parameters that keep their memory.
        previous: where parameters are already: what has not moved since stays, as the script may have views.
        place: where the others go.
    """

    def __init__(  # noqa: PLR0917 - one value for each line of the docstring, all but the first with a default
        self,
        models: Sequence[tuple[str, nn.Module]],
        absent: Container[int] = (),
        allocate: Allocate = private_zeros,
        master: Callable[[Tensor], Tensor] = lambda flat: flat,
        stay: Container[int] = (),
        previous: Sequence[PreviousLayout] = (),
        place: DeviceOf = attrgetter("device"),
    ) -> None:
        modules = [module for _, model in models for module in model.modules()]
        # The tables themselves: the public iterators take 20 times as long, and asking each module for its tables half of that.
        self._tables: list[dict[str, Any]] = [
            table
            for module in modules
            for table in (module._parameters, module._modules)  # noqa: SLF001
        ]
        self.names: list[str] = []
        self.parameters: list[nn.Parameter] = []
        seen: set[int] = set()
        for label, model in models:
            for name, parameter in model.named_parameters():
                if id(parameter) not in seen and id(parameter) not in absent:
                    seen.add(id(parameter))
                    self.names.append(f"{label}.{name}" if len(models) > 1 else name)
                    self.parameters.append(parameter)
        retained: dict[int, Segment] = {}
        self.flats: list[Tensor] = []
        for layout in previous:
            segments, flats = layout.unmoved(self.parameters)
            retained |= {number: replace(one, flat=one.flat + len(self.flats)) for number, one in segments.items()}
            self.flats += flats
        self._settle(retained, allocate, stay, place)
        self._take_stock(master)
        self._structure = list(chain.from_iterable(map(dict.values, self._tables)))

    def _settle(
        self, retained: Mapping[int, Segment], allocate: Allocate, stay: Container[int], place: DeviceOf
    ) -> None:
        """Give a segment to every parameter that has none, and memory to those that may move."""
        fresh = [parameter for number, parameter in enumerate(self.parameters) if number not in retained]
        segments, flats = lay_out(fresh, allocate, stay, place)
        moved = (Segment(len(self.flats) + segment.flat, segment.offset, segment.size) for segment in segments)
        self.segments = [
            retained[number] if number in retained else next(moved) for number in range(len(self.parameters))
        ]
        self.flats += flats
        for parameter, segment in zip(fresh, segments, strict=True):
            if segment.size and id(parameter) not in stay:
                parameter.data = alias(flats[segment.flat], segment.offset, parameter)

    def _take_stock(self, master: Callable[[Tensor], Tensor]) -> None:
        self._masters = [master(flat) for flat in self.flats]
        self._compared = self._without_holes()
        self._layout = self._current_layout()
        self._places = Places(self.parameters)

    def unmoved(self, parameters: Sequence[nn.Parameter]) -> tuple[dict[int, Segment], list[Tensor]]:
        """See `PreviousLayout`."""
        known = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        layout = list(zip(*self._layout[:3], strict=True))
        retained: dict[int, Segment] = {}
        for here, parameter in enumerate(parameters):
            number = known.get(id(parameter))
            if number is not None and layout[number] == (parameter.data_ptr(), parameter.shape, parameter.stride()):
                retained[here] = self.segments[number]
        flats = sorted({segment.flat for segment in retained.values()})
        place = {flat: number for number, flat in enumerate(flats)}
        moved = {here: Segment(place[one.flat], one.offset, one.size) for here, one in retained.items()}
        return moved, [self.flats[flat] for flat in flats]

    @property
    def addresses(self) -> list[int]:
        return self._layout[0]

    def master(self, number: int) -> Tensor:
        """What an optimizer writes to update parameter `number`: like the parameter, but not part of a graph."""
        segment, like = self.segments[number], self.parameters[number].detach()
        flat = self._masters[segment.flat]
        if flat is self.flats[segment.flat] or not segment.size:
            return like
        return view_in(flat, segment, like)

    def has_changed(self) -> bool:
        """Whether any parameter moved, changed shape, froze, was replaced, or a layer was added or removed."""
        # Every pass asks this, so it takes few steps of Python, whatever the model.
        if self._is_rebuilt():
            return True
        if self._places.surely_same(self.parameters):
            return list(map(_trainable, self.parameters)) != self._layout[3]
        return self._layout != self._current_layout()

    def only_froze(self) -> bool:
        """Whether nothing but `requires_grad` changed; then the current flags are taken as known."""
        now = self._current_layout()
        if now[:-1] == self._layout[:-1] and not self._is_rebuilt():
            self._layout = now
            return True
        return False

    def marks(self) -> Marks:
        """Marks that change when a parameter is written to, replaced in place, frozen or unfrozen."""
        parameters = self.parameters
        return (
            list(map(_version, parameters)),
            list(map(Tensor.data_ptr, parameters)),
            list(map(_trainable, parameters)),
        )

    def marks_as_laid(self) -> Marks:
        """`marks`, right after `has_changed` has returned False."""
        return list(map(_version, self.parameters)), self._layout[0], self._layout[3]

    def checksums(self) -> list[int]:
        """One number from the bits of each flat: it also changes on writes through `.data`."""
        return bit_sums(self._compared)

    def _without_holes(self) -> list[Tensor]:
        """The flats; of one that some parameters have left, only the parts of the others: the holes may differ."""
        compared: list[Tensor] = []
        for number, flat in enumerate(self.flats):
            inside = [segment for segment in self.segments if segment.flat == number]
            offsets, size = aligned_offsets([segment.size for segment in inside], element_size=flat.itemsize)
            is_whole = flat.numel() in (size, inside[0].size) and list(offsets) == [one.offset for one in inside]
            compared += [flat] if is_whole else [flat[one.offset : one.offset + one.size] for one in inside]
        return compared

    def name_of_moved(self, marks: Marks) -> str:
        """The first parameter whose mark differs from `marks`; empty if none does."""
        versions, addresses, trainable = marks
        if (
            addresses is self._layout[0]
            and list(map(_version, self.parameters)) == versions
            and list(map(_trainable, self.parameters)) == trainable
            and self._places.surely_same(self.parameters, only_addresses=True)
        ):
            return ""
        present = self.marks()
        if present == marks:
            return ""
        each = zip(self.names, zip(*marks, strict=True), zip(*present, strict=True), strict=True)
        return next(name for name, before, now in each if before != now)

    def _current_layout(self) -> Layout:
        """What must stay the same between steps; otherwise the arena is laid out again."""
        parameters = self.parameters
        return (
            list(map(Tensor.data_ptr, parameters)),
            list(map(_shape, parameters)),
            list(map(Tensor.stride, parameters)),
            list(map(_trainable, parameters)),
        )

    def _is_rebuilt(self) -> bool:
        """Whether a parameter or a layer came, went or was replaced."""
        if surely_hold(self._tables, self._structure):
            return False
        if sum(map(len, self._tables)) != len(self._structure):
            return True
        return not all(map(is_, chain.from_iterable(map(dict.values, self._tables)), self._structure))


Flags = np.ndarray[Any, Any]


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether none differs. On a GPU, this waits for it."""
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def differs(left: Tensor, right: Tensor) -> Tensor:
    """For each element of two 1-D tensors whether it differs, on their device; for a complex one twice."""
    return _bits(left) != _bits(right)


def _bits(flat: Tensor) -> Tensor:
    real = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return real.view(INTEGERS[real.element_size()])


def any_in(flags: Flags, flat: Tensor, segments: Sequence[Segment]) -> list[bool]:
    """For each segment of `flat`, in order, whether one of its `differs` is set. Between segments none is."""
    factor = flags.size // flat.numel()
    found: list[bool] = np.logical_or.reduceat(flags, [factor * segment.offset for segment in segments]).tolist()
    return found


def on_host(rows: Sequence[Tensor]) -> list[Flags]:
    """1-D tensors of one dtype and device as arrays, with one wait for it."""
    if not rows:
        return []
    whole = torch.cat([*rows]).cpu().numpy()
    return np.split(whole, np.cumsum([row.numel() for row in rows])[:-1])
