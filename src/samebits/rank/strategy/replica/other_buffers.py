"""Modules that nobody prepared, and whose buffers a lane writes: each rank's copy sees its own lanes only.

A teacher in training mode has BatchNorm statistics, for example. One look, in the first lane, names them.
"""

from __future__ import annotations

import gc
from collections.abc import Container, Iterator

import torch
from torch import Tensor, nn

from samebits.notices import say
from samebits.rank.strategy.replica.arena import same_bits

MOST_COPIED = 1 << 16
"""Bytes of a buffer whose values are compared too."""


class OtherBuffers:
    """The buffers of all modules of this process but the known ones, as they are now; it holds them until `say_written`.

    Args:
        known: identities of modules whose buffers lanes start from.
    """

    def __init__(self, known: Container[int]) -> None:
        # The collector knows every module; a hook on all forwards would make compiled code be compiled again.
        kinds = _subclasses(nn.Module)
        modules = [one for one in gc.get_objects() if type(one) in kinds and id(one) not in known]
        self._before = [
            (module, key, buffer, buffer._version, _copy(buffer))  # noqa: SLF001
            for module in modules
            for key, buffer in _buffers_of(module)
        ]

        self.is_held = bool(self._before)

    def written(self) -> list[str]:
        """Names of those that were written to, or replaced, since then."""
        return [
            f"{type(module).__name__}.{key}"
            for module, key, buffer, version, copy in self._before
            if buffer._version != version  # noqa: SLF001
            or dict(_buffers_of(module)).get(key) is not buffer
            or (copy is not None and not same_bits(copy, buffer.detach().reshape(-1)))
        ]

    def say_written(self) -> None:
        """Say which were written to, and let go of all."""
        names = list(dict.fromkeys(self.written()))
        self._before.clear()
        self.is_held = False
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            say(
                f"a lane wrote to the buffer {names[0]}{more} of a module that was not prepared: each rank's copy sees its own "
                "lanes only, so what it holds depends on the number of ranks. Call eval() on that module, or let every lane "
                "start from the same values: run.track(teacher=module)."
            )


def _copy(buffer: Tensor) -> Tensor | None:
    """Its values, where they are few and on the CPU: BatchNorm writes its statistics without counting it."""
    is_small = buffer.device.type == "cpu" and buffer.layout is torch.strided and buffer.nbytes <= MOST_COPIED
    return buffer.detach().reshape(-1).clone() if is_small else None


def _subclasses(kind: type) -> set[type]:
    """The class and all below it: asked for each of 300,000 objects, `issubclass` takes three times as long."""
    found, left = {kind}, [kind]
    while left:
        new: set[type] = {*type.__subclasses__(left.pop())} - found
        found |= new
        left += new
    return found


def _buffers_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Plain ones only: other kinds run code of their own when they are looked at."""
    for key, buffer in (module.__dict__.get("_buffers") or {}).items():
        if type(buffer) is Tensor and not buffer.is_inference():
            yield key, buffer
