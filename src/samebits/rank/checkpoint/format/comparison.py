"""Two states, tensor by tensor and value by value. Everything is compared by its bits, on the CPU, a piece at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.protocol.state_files.manifest import CHANGED, UNHASHED, Manifest
from samebits.protocol.state_files.whole_state import documents_of, whole_state
from samebits.rank.checkpoint.format.tensor_file import Described, TensorFile

PIECE = 1 << 20
"""Elements that are compared at once: 8 MiB of float64 for each side."""
LONGEST = 16
"""Of longer lists it is said how many items differ, and not which; a stream of Python's `random` has 625."""
SUFFIX = ".safetensors"
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Pairs = Iterator[tuple[str, Any, Any]]
Row = dict[str, Any]
MISSING = object()
"""What stands for a value that a state does not have."""


def compare(left: Path, right: Path) -> dict[str, Any]:
    """Compare two states: `tensors`, `values` and writers (`written`) that differ, how many there are, and whether all are the
    `same`. Who wrote them makes no difference.

    Raises:
        UsageError: when one of them is missing or damaged, or is not what samebits writes.
    """
    (place, manifest), (other_place, other_manifest) = whole_state(left), whole_state(right)
    names = [name for name in {**manifest.files, **other_manifest.files} if name.endswith(SUFFIX)]
    tensors: list[Row] = []
    num_tensors = 0
    for name in sorted(names):
        one, other = manifest.files.get(name), other_manifest.files.get(name)
        if one is not None and other is not None and one.sha256 == other.sha256 != UNHASHED:
            num_tensors += len(one.tensors)
            continue
        sides = [TensorFile(at / name) if file else None for at, file in ((place, one), (other_place, other))]
        num_tensors += len({tensor for side in sides if side for tensor in side.described})
        tensors += _tensors(name.removesuffix(SUFFIX), *sides)
    try:
        leaves = [*_leaves("", _documents(place, manifest), _documents(other_place, other_manifest))]
        values = [_value(*one) for one in leaves if _differs(*one[1:])]
        written = [_value(*one) for one in _leaves("", _facts(manifest), _facts(other_manifest)) if _differs(*one[1:])]
    except RecursionError:
        raise UsageError(f"{left} or {right} is nested too deeply.", CHANGED) from None
    record = {"left": str(left), "right": str(right), "tensors": tensors, "values": values, "written": written}
    return {**record, "num_tensors": num_tensors, "num_values": len(leaves), "same": not (tensors or values)}


def _documents(place: Path, manifest: Manifest) -> Row:
    """Counters, streams and options first; what an optimizer keeps for each parameter follows."""
    documents, entries = documents_of(place, manifest)
    return {**documents, "entries": entries}


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


def _value(path: str, left: Any, right: Any) -> Row:
    """The two as JSON; an empty text where a state has no such value."""
    one, other = _items(left), _items(right)
    if one is not None and other is not None and len(one) == len(other):
        differing = sum(_differs(*pair) for pair in zip(one, other, strict=True))
        said = f"{differing} of {len(one)} items differ"
        return {"path": path, "left": said, "right": said}
    texts = ["" if value is MISSING else json.dumps(value) for value in (left, right)]
    return {"path": path, "left": texts[0], "right": texts[1]}


def _tensors(file: str, left: TensorFile | None, right: TensorFile | None) -> Iterator[Row]:
    """Tensors that differ: their dtypes and shapes, such as `float32 [16, 8]`, empty where a state has no such tensor; `largest` is
    None where these differ, and a text where JSON has no such number.
    """
    mine, other = (side.described if side else {} for side in (left, right))
    for name in sorted({**mine, **other}):
        one, two = mine.get(name), other.get(name)
        record = {"file": file, "name": name, "left": _described(one), "right": _described(two)}
        if left is None or right is None or one is None or one != two:
            yield {**record, "num_elements": 0, "num_differing": 0, "largest": None}
            continue
        number, largest = difference(left.get(name), right.get(name))
        if number:
            size = torch.Size(one.shape).numel()
            far = largest if math.isfinite(largest) else str(largest)
            yield {**record, "num_elements": size, "num_differing": number, "largest": far}


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
            # equal infinities are nan apart
            apart = (piece.to(wide) - second.to(wide)).abs().where(differing, 0.0).max()
            largest = float(torch.maximum(apart, torch.tensor(largest, dtype=torch.float64, device="cpu")))
    return count, largest
