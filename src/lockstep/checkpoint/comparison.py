"""Two states, tensor by tensor and value by value. Everything is compared by its bits, on the CPU, a piece at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.checkpoint.difference import Differences, TensorDifference, ValueDifference
from lockstep.checkpoint.manifest import CHANGED, DOCUMENTS, Manifest
from lockstep.checkpoint.tensor_file import Described, TensorFile
from lockstep.checkpoint.unique_json import loads
from lockstep.checkpoint.whole_state import whole_state
from lockstep.errors import UsageError
from lockstep.regular_file import read_regular

PIECE = 1 << 20
"""Elements that are compared at once: 8 MiB of float64 for each side."""
LONGEST = 16
"""Of longer lists it is said how many items differ, and not which; a stream of Python's `random` has 625."""
SUFFIX = ".safetensors"
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FIRST = re.compile(r"(model|optimizer|gradients)\d*")
Pairs = Iterator[tuple[str, Any, Any]]


class _Missing:
    """What stands for a value that a state does not have."""


MISSING = _Missing()


def compare(left: Path, right: Path) -> Differences:
    """Compare two states.

    Raises:
        UsageError: when one of them is missing or damaged, or is not what lockstep writes.
    """
    (place, manifest), (other_place, other_manifest) = whole_state(left), whole_state(right)
    names = [name for name in dict.fromkeys([*manifest.files, *other_manifest.files]) if name.endswith(SUFFIX)]
    tensors: list[TensorDifference] = []
    num_tensors = 0
    for name in sorted(names, key=_order):
        one, other = manifest.files.get(name), other_manifest.files.get(name)
        if one is not None and other is not None and one.sha256 == other.sha256:
            num_tensors += len(one.tensors)
            continue
        sides = [TensorFile(at / name) if file else None for at, file in ((place, one), (other_place, other))]
        num_tensors += len({tensor for side in sides if side for tensor in side.described})
        tensors += _tensors(name.removesuffix(SUFFIX), *sides)
    try:
        leaves = list(_leaves("", _documents(place, manifest), _documents(other_place, other_manifest)))
        written = [_value(*one) for one in _leaves("", _facts(manifest), _facts(other_manifest)) if _differs(*one[1:])]
    except RecursionError:
        raise UsageError(f"{left} or {right} is nested too deeply.", CHANGED) from None
    values = [_value(*one) for one in leaves if _differs(*one[1:])]
    return Differences(str(left), str(right), tuple(tensors), tuple(values), tuple(written), num_tensors, len(leaves))


def _order(name: str) -> tuple[bool, str]:
    """Models, optimizers and gradients by name, the other tensors last."""
    return _FIRST.fullmatch(name.removesuffix(SUFFIX)) is None, name.replace("gradients", "p")


def _documents(place: Path, manifest: Manifest) -> Any:
    """Counters, streams and options first; what an optimizer keeps for each parameter follows."""
    if DOCUMENTS not in manifest.files:
        raise UsageError(f"{place} is not a state: its manifest does not name {DOCUMENTS}.", CHANGED)
    try:
        told = loads(read_regular(place / DOCUMENTS, follow=False))
        documents = dict(told["documents"])
        return {**documents, "entries": told["entries"]}
    except OSError as error:
        raise UsageError(f"{place / DOCUMENTS} cannot be read ({error.strerror}).", "Check the path.") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{place / DOCUMENTS} is not what lockstep writes.", CHANGED) from None


def _facts(manifest: Manifest) -> Mapping[str, Any]:
    """Who wrote it; where the run was is among the counters."""
    return {name: value for name, value in manifest.facts.items() if name not in ("step", "epochs")}


def _leaves(path: str, left: Any, right: Any) -> Pairs:
    """Every value of the two by its path; a long list is one value."""
    if isinstance(left, dict) and isinstance(right, dict) and "$" not in (*left, *right):
        for key in dict.fromkeys([*left, *right]):
            yield from _leaves(f"{path}.{key}" if path else key, left.get(key, MISSING), right.get(key, MISSING))
        return
    items = [_items(one) for one in (left, right)]
    if items[0] is not None and items[1] is not None and len(items[0]) == len(items[1]):
        if len(items[0]) > LONGEST:
            yield path, left, right
        else:
            for number, (one, other) in enumerate(zip(*items, strict=True)):
                yield from _leaves(f"{path}[{number}]", one, other)
        return
    yield path, left, right


def _items(value: Any) -> list[Any] | None:
    """The items of a list or of an encoded tuple; None for anything else."""
    if isinstance(value, dict) and value.get("$") == "tuple":
        value = value.get("items")
    return value if isinstance(value, list) else None


def _differs(left: Any, right: Any) -> bool:
    """Whether they are not the same JSON: 1, 1.0 and true are different, and so are 0.0 and -0.0."""
    if left is MISSING or right is MISSING:
        return left is not right
    return json.dumps(left, sort_keys=True) != json.dumps(right, sort_keys=True)


def _value(path: str, left: Any, right: Any) -> ValueDifference:
    one, other = _items(left), _items(right)
    if one is not None and other is not None and len(one) == len(other):
        count = sum(_differs(*pair) for pair in zip(one, other, strict=True))
        said = f"{count} of {len(one)} items differ"
        return ValueDifference(path, said, said)
    return ValueDifference(path, _shown(left), _shown(right))


def _shown(value: Any) -> str:
    return "" if value is MISSING else json.dumps(value)


def _tensors(file: str, left: TensorFile | None, right: TensorFile | None) -> Iterator[TensorDifference]:
    mine, other = (side.described if side else {} for side in (left, right))
    for name in sorted({**mine, **other}):
        one, two = mine.get(name), other.get(name)
        if one is None or two is None or one != two:
            yield TensorDifference(file, name, _described(one), _described(two))
        elif left is not None and right is not None:
            count, largest = difference(left.get(name), right.get(name))
            if count:
                said = _described(one)
                yield TensorDifference(file, name, said, said, torch.Size(one.shape).numel(), count, largest)


def _described(one: Described | None) -> str:
    return f"{one.dtype} {list(one.shape)}".removeprefix("torch.") if one is not None else ""


def difference(left: Tensor, right: Tensor) -> tuple[int, float]:
    """How two tensors of one dtype and shape differ: the elements with other bits, and the largest absolute difference.

    The second is computed in float64; it is nan where one of the two numbers is.
    """
    one, other = (tensor.contiguous().reshape(-1) for tensor in (left, right))
    count, largest = 0, 0.0
    for begin in range(0, one.numel(), PIECE):
        piece, second = one[begin : begin + PIECE], other[begin : begin + PIECE]
        bits = _BITS[piece.element_size()]
        differing = piece.view(bits) != second.view(bits)
        number = int(differing.sum())
        if number:
            count += number
            wide = torch.complex128 if piece.is_complex() else torch.float64
            apart = (
                (piece.to(wide) - second.to(wide)).abs().where(differing, 0.0).max()
            )  # equal infinities are nan apart
            largest = float(torch.maximum(apart, torch.tensor(largest, dtype=torch.float64, device="cpu")))
    return count, largest
