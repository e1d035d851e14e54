"""Module buffers in a pass: every lane starts from the step's values, and one value stands at the end.

Running statistics of normalisation layers end as the weighted tree mean over the lanes that changed them,
`num_batches_tracked` as the maximum. Any other buffer must come out of every lane with the same bits; one that does not
is named, and may be given a rule: "first" (the first lane's value counts) or "mean" (as a running statistic).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from lockstep.errors import UsageError
from lockstep.strategy.arena import INTEGERS, Allocate, Segment, alias, bit_sums, lay_out, private_zeros


class Rule(StrEnum):
    """What a buffer's value is after a pass."""

    MEAN = "mean"
    MAXIMUM = "maximum"
    SAME = "same"
    FIRST = "first"


@dataclass
class Entry:
    """One registered buffer."""

    module: nn.Module
    key: str
    name: str
    rule: Rule
    segment: Segment
    view: Tensor


class BufferBank:
    """All buffers of the prepared models.

    Args:
        models: (label, module) pairs.
        rules: patterns of buffer names, as in a shell, to "first" or "mean".
        absent: identities of buffers that other ranks hold; they are left out.
        allocate: where the buffers go.
    """

    def __init__(
        self,
        models: Sequence[tuple[str, nn.Module]],
        rules: Mapping[str, str],
        absent: Container[int] = (),
        allocate: Allocate = private_zeros,
    ) -> None:
        self._absent = absent
        found: dict[int, tuple[nn.Module, str, str]] = {}
        for label, model in models:
            for path, module in model.named_modules():
                for key, buffer in module._buffers.items():  # noqa: SLF001 - named_buffers does not say which module
                    if self._carries(buffer):
                        name = ".".join(filter(None, (label if len(models) > 1 else "", path, key)))
                        found.setdefault(id(buffer), (module, key, name))
        places = list(found.values())
        tensors = [module._buffers[key] for module, key, _ in places]  # noqa: SLF001
        segments, self._flats = lay_out([tensor for tensor in tensors if tensor is not None], allocate)
        self.entries = [
            Entry(
                module, key, name, _rule(module, key, name, rules), segment, _rebind(module, key, self._flats, segment)
            )
            for (module, key, name), segment in zip(places, segments, strict=True)
        ]
        self._modules = [module for _, model in models for module in model.modules()]
        self._structure = self._present_structure()
        self._members = [
            [index for index, entry in enumerate(self.entries) if entry.segment.flat == flat]
            for flat in range(len(self._flats))
        ]
        self._start = [flat.clone() for flat in self._flats]

    def has_changed(self) -> bool:
        """Whether buffers came or went, or changed shape or dtype: then a new bank is needed."""
        shapes = ((entry.module._buffers[entry.key], entry.view) for entry in self.entries)  # noqa: SLF001
        return self._structure != self._present_structure() or any(
            now is None or now.shape != view.shape or now.dtype != view.dtype or now.device != view.device
            for now, view in shapes
        )

    def _present_structure(self) -> list[tuple[int, str]]:
        return [
            (id(module), key)
            for module in self._modules
            for key, buffer in module._buffers.items()  # noqa: SLF001
            if self._carries(buffer)
        ]

    def _carries(self, buffer: Tensor | None) -> bool:
        """Sparse buffers stay where they are; they are constants, such as the adjacency of a graph."""
        strided = buffer is not None and buffer.layout is torch.strided and bool(buffer.numel())
        return strided and id(buffer) not in self._absent

    def take_in(self) -> None:
        """Bring buffers that the module replaced (`self.count = self.count + 1`) back into the flat buffers."""
        for entry in self.entries:
            now = entry.module._buffers[entry.key]  # noqa: SLF001
            if now is not entry.view and now is not None:
                if now.shape != entry.view.shape or now.dtype != entry.view.dtype:
                    raise UsageError(
                        f"The buffer {entry.name!r} changed from {tuple(entry.view.shape)} {entry.view.dtype} to "
                        f"{tuple(now.shape)} {now.dtype} inside a step. Give it its full size before the loop, or keep "
                        f"it as a plain attribute."
                    )
                entry.view.copy_(now.detach())
                entry.module._buffers[entry.key] = entry.view  # noqa: SLF001

    def checksums(self) -> list[int]:
        """One integer sum over the bits of each flat buffer."""
        self.take_in()
        return bit_sums(self._flats)

    def remember(self) -> None:
        """The present values are those that every lane starts from."""
        self.take_in()
        for start, flat in zip(self._start, self._flats, strict=True):
            if not _same_bits(start, flat):
                start.copy_(flat)

    def after_lane(self) -> dict[int, Tensor]:
        """The new values of the buffers that the lane changed, by number of entry; the module gets the old ones back."""
        self.take_in()
        changed: dict[int, Tensor] = {}
        for number, (flat, start) in enumerate(zip(self._flats, self._start, strict=True)):
            if _same_bits(flat, start):
                continue
            members, now = self._members[number], flat.clone()
            segments = [self.entries[index].segment for index in members]
            for index, segment, differs in zip(members, segments, _differing(now, start, segments), strict=True):
                if differs:
                    changed[index] = _part(now, segment)
            flat.copy_(start)
        return changed

    def start_of(self, index: int) -> Tensor:
        """What entry `index` was when the pass began, 1-D."""
        return _part(self._start[self.entries[index].segment.flat], self.entries[index].segment)

    def fill(self, index: int, value: int) -> None:
        """Give entry `index` one number."""
        segment = self.entries[index].segment
        _part(self._flats[segment.flat], segment).fill_(value)

    def set(self, index: int, value: Tensor) -> None:
        """Give entry `index` the value of a 1-D tensor."""
        segment = self.entries[index].segment
        _part(self._flats[segment.flat], segment).copy_(value)


def _rebind(module: nn.Module, key: str, flats: Sequence[Tensor], segment: Segment) -> Tensor:
    buffer = module._buffers[key]  # noqa: SLF001
    assert buffer is not None
    buffer.data = alias(flats[segment.flat], segment.offset, buffer)  # the same object: others may hold it too
    return buffer


def _rule(module: nn.Module, key: str, name: str, rules: Mapping[str, str]) -> Rule:
    buffer = module._buffers[key]  # noqa: SLF001
    assert buffer is not None
    for pattern, rule in rules.items():
        if fnmatchcase(name, pattern):
            if rule == Rule.MEAN and not buffer.is_floating_point():
                raise UsageError(f'buffers={{"{pattern}": "mean"}}: {name!r} has dtype {buffer.dtype}; use "first".')
            return Rule(rule)
    if isinstance(module, _NormBase):
        if key in ("running_mean", "running_var"):
            return Rule.MEAN
        if key == "num_batches_tracked":
            return Rule.MAXIMUM
    return Rule.SAME


def _part(flat: Tensor, segment: Segment) -> Tensor:
    return flat[segment.offset : segment.offset + segment.size]


def _same_bits(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def _differing(left: Tensor, right: Tensor, segments: Sequence[Segment]) -> list[bool]:
    """For each segment whether any bit in it differs: one running count of differences, read at the ends."""
    if left.is_complex():
        segments = [Segment(segment.flat, 2 * segment.offset, 2 * segment.size) for segment in segments]
        left, right = torch.view_as_real(left).reshape(-1), torch.view_as_real(right).reshape(-1)
    integers = INTEGERS[left.element_size()]
    count = torch.zeros(len(left) + 1, dtype=torch.int64, device=left.device)
    torch.cumsum(left.view(integers) != right.view(integers), 0, out=count[1:])
    starts = count[[segment.offset for segment in segments]]
    ends = count[[segment.offset + segment.size for segment in segments]]
    differing: list[bool] = (ends != starts).tolist()
    return differing
