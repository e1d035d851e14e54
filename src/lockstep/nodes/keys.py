"""The keys through which ranks of all nodes meet, as node 0 holds them: torch's store, question by question. Pure.

A question names what is to be done (`do`), with which keys, and has values behind it as bytes; who asks gets one answer, at once or
when the keys are there. A value travels as its node packed it, and to each node once: who asks again gets a size of -1, and has it.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

FEWEST_PACKED, FEWEST_KEPT = 512, 256
"""Of so many bytes a value is packed, and kept by the nodes to which it went."""
MOST_VALUE_BYTES = 8 << 20
"""What torch's own store takes."""
MOST_ANSWER_BYTES = 15 << 20
"""Of all values that are asked for at once: a frame has a little more."""
HAS_IT = -1
"""As a size: this node was sent the value before."""
Answer = Callable[[dict[str, Any], bytes], None]


def to_travel(value: bytes) -> bytes:
    """A value as it goes between nodes. Raises ValueError for one that is too long."""
    if len(value) > MOST_VALUE_BYTES:
        raise ValueError(f"a value of {len(value)} bytes, and {MOST_VALUE_BYTES} are the most")
    if len(value) >= FEWEST_PACKED and len(small := zlib.compress(value, 1)) < len(value):
        return b"\1" + small
    return b"\0" + value


def from_travel(travelling: bytes) -> bytes:
    """The inverse."""
    if travelling[:1] == b"\0":
        return travelling[1:]
    return zlib.decompressobj().decompress(travelling[1:], MOST_VALUE_BYTES)


@dataclass(eq=False)
class _Waiting:
    node: Hashable
    keys: Sequence[str]
    missing: set[str]
    answer: Answer
    is_get: bool


@dataclass
class Keys:
    """Those of one round."""

    _values: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """As they travel, each with a number that no other value has."""
    _num_values: int = 0
    _waiting: dict[str, list[_Waiting]] = field(default_factory=lambda: defaultdict(list))
    _sent: dict[Hashable, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def ask(self, node: Hashable, told: dict[str, Any], blob: bytes, answer: Answer) -> None:
        """Do what a rank asks for.

        Args:
            node: where it is.
            told: `do`, `keys`, and what else that takes.
            blob: the values, one after the other as `sizes` says; of `set` and `append` the only one.
            answer: takes the answer, once.
        """
        keys = [str(key) for key in told.get("keys", [])]
        match told["do"]:
            case "get" | "wait" as do:
                self._wait(_Waiting(node, keys, set(keys) - self._values.keys(), answer, do == "get"))
            case "set":
                self._set(keys[0], blob)
                answer({}, b"")
            case "append":
                self._set(keys[0], to_travel(self._value(keys[0]) + from_travel(blob)))
                answer({}, b"")
            case "add":
                total = int(self._value(keys[0]) or b"0") + int(told["amount"])
                self._set(keys[0], to_travel(str(total).encode()))
                answer({"found": total}, b"")
            case "compare_set":
                answer({}, self._compare_set(keys[0], blob[: told["sizes"][0]], blob[told["sizes"][0] :]))
            case "check":
                answer({"found": all(key in self._values for key in keys)}, b"")
            case "delete":
                answer({"found": self._values.pop(keys[0], None) is not None}, b"")
            case "list":
                answer({"found": [*self._values]}, b"")

    def _value(self, key: str) -> bytes:
        return from_travel(self._values[key][0]) if key in self._values else b""

    def _set(self, key: str, travelling: bytes) -> None:
        self._num_values += 1
        self._values[key] = travelling, self._num_values
        for waiting in self._waiting.pop(key, []):
            waiting.missing.discard(key)
            if not waiting.missing:  # but for what was deleted meanwhile
                waiting.missing |= set(waiting.keys) - self._values.keys()
                self._wait(waiting)

    def _wait(self, waiting: _Waiting) -> None:
        if not waiting.missing:
            waiting.answer(*(self._get(waiting) if waiting.is_get else ({}, b"")))
        for key in waiting.missing:
            self._waiting[key].append(waiting)

    def _get(self, waiting: _Waiting) -> tuple[dict[str, Any], bytes]:
        if (size := sum(len(self._values[key][0]) for key in waiting.keys)) > MOST_ANSWER_BYTES:
            return {"why": f"values of {size} bytes at once, and {MOST_ANSWER_BYTES} are the most"}, b""
        sizes, values, sent = [], [], self._sent[waiting.node]
        for key in waiting.keys:
            value, number = self._values[key]
            if sent.get(key) == number:
                sizes.append(HAS_IT)
                continue
            if len(value) >= FEWEST_KEPT:
                sent[key] = number
            sizes.append(len(value))
            values.append(value)
        return {"sizes": sizes}, b"".join(values)

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """The value afterwards, as torch's own store says it: of a key that is missing, what was expected."""
        is_there, wanted = key in self._values, from_travel(expected)
        if self._value(key) != wanted or (not is_there and wanted):
            return self._values[key][0] if is_there else expected
        self._set(key, desired)
        return desired
