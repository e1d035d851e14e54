"""What a run asks of a nursery that waits, read from JSON that anybody of the same user may have sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.machine.packets import NotUnderstood

STREAMS = [0, 1, 2]
WITH_THEM = 2
"""Descriptors behind those of the run: its working directory, and a pipe that ends with its command."""


@dataclass(frozen=True)
class Order:
    """A run, as its command was started."""

    same: Mapping[str, Any]
    """What must be equal: the interpreter, its options, its import path, where lockstep is."""
    variables: Mapping[str, str]
    argv: Sequence[str] = ()
    path: Sequence[str] = ()
    """Its whole `sys.path`."""
    command: Sequence[str] = ()
    """Its command line, as the kernel shows it."""
    targets: Sequence[int] = ()
    """The numbers of its descriptors: 0, 1, 2, and all others that programs which it starts would inherit."""


def parse_order(told: Sequence[Any], num_descriptors: int) -> Order:
    """The order in a message.

    Raises:
        NotUnderstood: when there is none.
    """
    if len(told) != 1 or not isinstance(told[0], dict) or told[0].keys() != set(Order.__dataclass_fields__):
        raise NotUnderstood("it is no order")
    order = Order(**told[0])
    texts: list[Any] = [*_items(order.argv), *_items(order.path), *_items(order.command)]
    texts += [*_mapped(order.variables), *_mapped(order.variables).values()]
    if not all(isinstance(text, str) and "\0" not in text for text in texts) or not isinstance(order.same, dict):
        raise NotUnderstood("its words are no texts")
    numbers = _items(order.targets)
    if not all(type(number) is int and 0 <= number < 1 << 20 for number in numbers):
        raise NotUnderstood("its descriptors have no numbers")
    if numbers and (sorted(numbers)[:3] != STREAMS or len(set(numbers)) != len(numbers)):
        raise NotUnderstood("its standard streams are not open")
    if num_descriptors != (len(numbers) + WITH_THEM if numbers else 0):
        raise NotUnderstood("its descriptors are missing")
    return order


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise NotUnderstood("it is no list")
    return value


def _mapped(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise NotUnderstood("it is no mapping")
    return value
