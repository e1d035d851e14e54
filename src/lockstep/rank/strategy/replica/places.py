"""Where tensors are, and who holds them: facts about all parameters of a model, gathered once and compared in each step.

The compiled part compares them in loops of its own, 20 to 40 ns for each tensor instead of 300 to 900 in Python with the cold
caches of a step. Without it, or where torch does not tell it enough, Python compares the same things.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lockstep.machine.torch_private import storage_uses
from lockstep.rank.transport.local.native import available, compiled


@cache
def reader() -> Any:
    """What the compiled loops read tensors with; None where there is none."""
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if not available() or exchange is None:
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
        """Whether they are as they were; False says nothing, and the caller looks again.

        Args:
            tensors: the same ones, in the same order.
            only_addresses: whether shapes and strides do not count.
        """
        return self._quick is not None and self._quick.same(tensors, only_addresses)


def surely_apart(tensors: list[Tensor]) -> bool:
    """Whether none is sparse and each ends before the next begins, in the order of memory; False says nothing."""
    return reader() is not None and compiled.are_apart(reader(), tensors)


def surely_hold(tables: list[dict[str, Any]], values: list[Any]) -> bool:
    """Whether some dictionaries hold these objects, in order; False says nothing."""
    return available() and compiled.hold(tables, values)


class Holders:
    """The references to some tensors and to their memory, as many as there are now.

    Those to objects find `p.grad` itself, because since torch 2.10 an object that C++ refers to has one more reference in
    Python. Those to memory, torch's own counter without a public name, find `p.grad.detach()` and other views.

    Args:
        lists: of tensors; they must stay as they are.
        flats: whose memory it is.
    """

    def __init__(self, lists: Sequence[list[Tensor]], flats: Sequence[Tensor]) -> None:
        self._lists, self._flats = lists, flats
        self._uses = self._memory()
        self._quick = [compiled.Holders(one) for one in lists] if available() else None
        self._counts = self._objects() if self._quick is None else []

    def same(self) -> bool:
        """Whether nobody else holds one of them, as when this was made."""
        if self._memory() != self._uses:
            return False
        if self._quick is not None:
            return all(one.same() for one in self._quick)
        return self._objects() == self._counts

    def _memory(self) -> list[int]:
        storages = [flat.untyped_storage() for flat in self._flats]
        return [storage_uses(storage._cdata) for storage in storages]  # noqa: SLF001

    def _objects(self) -> list[int]:
        return [count for one in self._lists for count in map(sys.getrefcount, one)]
