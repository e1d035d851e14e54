"""SLURM's short forms: `n[1-3,07],login` for host names, `2(x3),1` for numbers of tasks.

The same as `scontrol show hostnames` prints, which may be missing inside a container.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_RANGE = "[0-9]{1,9}(?:-[0-9]{1,9})?"
_NAME = re.compile(rf"(?:[^,\[\]]|\[{_RANGE}(?:,{_RANGE})*\])+")
"""One element of a list: text, and numbers in brackets, in any order."""
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
MOST_HOSTS = 100_000
"""More are a mistake, or an attack on the memory."""


def hosts(text: str) -> tuple[str, ...]:
    """The names of a host list, in its order; a last number in brackets counts fastest.

    Raises:
        ValueError: for what is no host list.
    """
    names = _NAME.findall(text)
    if not text or ",".join(names) != text:
        raise ValueError(text)
    found = tuple(itertools.islice((host for name in names for host in _spread(name)), MOST_HOSTS + 1))
    if len(found) > MOST_HOSTS:
        raise ValueError(text)
    return found


def _spread(name: str) -> Iterator[str]:
    """All hosts of one element: `n[1-2]` is n1 and n2."""
    before, bracket, rest = name.partition("[")
    if not bracket:
        yield name
        return
    inside, _, after = rest.partition("]")
    for number in inside.split(","):
        first, is_range, last = number.partition("-")
        for value in range(int(first), int(last if is_range else first) + 1):
            for end in _spread(after) if after else ("",):
                yield f"{before}{value:0{len(first)}d}{end}"


def counts(text: str) -> tuple[int, ...]:
    """Numbers for each host: `2(x3),1` is 2, 2, 2, 1.

    Raises:
        ValueError: for anything else.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None or (times := int(match[2] or 1)) > MOST_HOSTS:
            raise ValueError(text)
        found += [int(match[1])] * times
    return tuple(found)
