"""Names of parameters and buffers, without the script's help: those of the modules that hold them.

Modules are found among all objects of the process, as its garbage collector has them, when an optimizer first updates them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn


class Names:
    """The names of what optimizers update."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._kept: list[Tensor] = []
        """All that have a name: another tensor could get the identity of one that is gone."""
        self._roots: list[tuple[str, nn.Module]] = []
        self._labels: dict[str, int] = {}

    def learn(self, parameters: Sequence[Tensor]) -> None:
        """Find the modules that hold them, if they are new."""
        new = [one for one in parameters if id(one) not in self._names]
        if not new:
            return
        for root in _roots(new):
            label = self._label(type(root).__name__)
            self._roots.append((label, root))
            for name, tensor in _tensors(root, "_parameters"):
                self._take(tensor, label + name)
        for one in new:
            self._take(one, f"unnamed.{len(self._names) + 1}")

    def _label(self, kind: str) -> str:
        """What the names of a module begin with, and those of no other: `Net.`, then `Net.2.`."""
        while True:
            count = self._labels[kind] = self._labels.get(kind, 0) + 1
            label = f"{kind}.{count}." if count > 1 else f"{kind}."
            # A first Sequential has a `Sequential.2.` of its own.
            own = (name for before, root in self._roots for name in _children(before, root))
            if count == 1 or label not in own:
                return label

    def _take(self, tensor: Tensor, name: str) -> None:
        if id(tensor) not in self._names:
            self._names[id(tensor)] = name
            self._kept.append(tensor)

    def knows(self, parameter: Tensor) -> bool:
        """Whether it has a name already."""
        return id(parameter) in self._names

    def of(self, parameter: Tensor) -> str:
        """Its name."""
        return self._names[id(parameter)]

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """All buffers of the modules that hold parameters."""
        for label, root in self._roots:
            for name, tensor in _tensors(root, "_buffers"):
                yield label + name, tensor


def _roots(wanted: Sequence[Tensor]) -> list[nn.Module]:
    """The outermost modules that hold them, in the order of the first of their parameters."""
    places = {id(one): place for place, one in reversed(list(enumerate(wanted)))}
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and "_modules" in _own(one)]
    inner = {id(child) for one in modules for child in _own(one)["_modules"].values()}
    found: list[tuple[int, int, nn.Module]] = []
    for one in modules:
        if id(one) not in inner:
            held = [places[id(tensor)] for _, tensor in _tensors(one, "_parameters") if id(tensor) in places]
            if held:
                found.append((min(held), -len(held), one))
    roots: list[nn.Module] = []
    named: set[int] = set()
    for _, _, one in sorted(found, key=lambda triple: triple[:2]):
        own = {id(tensor) for _, tensor in _tensors(one, "_parameters")} & places.keys()
        if own - named:
            named |= own
            roots.append(one)
    return roots


def _own(module: nn.Module) -> dict[str, Any]:
    """Its dictionary, past what the class makes of attributes."""
    return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]


def _children(label: str, root: nn.Module) -> Iterator[str]:
    """What the names of the module's own modules begin with."""
    return (f"{label}{name}." for name in _own(root)["_modules"])


def _tensors(root: nn.Module, kind: str) -> Iterator[tuple[str, Tensor]]:
    """Those of the module and all modules in it, each once; past properties and methods of theirs."""
    seen: set[int] = set()
    left = [("", root)]
    while left:
        prefix, module = left.pop()
        if id(module) in seen or "_modules" not in _own(module):
            continue
        seen.add(id(module))
        for name, tensor in list(_own(module)[kind].items()):
            if isinstance(tensor, Tensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                yield prefix + name, tensor
        children = [
            (f"{prefix}{name}.", child) for name, child in _own(module)["_modules"].items() if child is not None
        ]
        left += reversed(children)
