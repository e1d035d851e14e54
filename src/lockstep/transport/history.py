"""What the ranks have exchanged since the places from which a new rank can go on, so that it can hear it again.

A rank that takes a dead one's place runs the script from its first line. The others have passed these exchanges; what
they heard then is what it hears now. Three parts, by where the script is: outside of its loop over epochs, in the body
of the current epoch, and after the last finished step. A later body or step replaces what was noted for the one before:
a new rank skips them.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from lockstep.errors import PromiseBroken

MOST_BYTES = 64 << 20
"""How much is kept. A script that exchanges more in one part cannot have a rank replaced there."""


class Part(StrEnum):
    """Where the script is."""

    OUTSIDE = "outside"
    BODY = "body"
    STEP = "step"


class History:
    """What one rank heard in each part.

    Args:
        told: what the others heard, of a rank that takes a dead one's place; empty for all others.
    """

    def __init__(self, told: str = "") -> None:
        self._told: dict[Part, deque[list[bytes]]] = {part: deque() for part in Part}
        for part, entries in (json.loads(told) if told else {}).items():
            self._told[Part(part)].extend([base64.b64decode(one) for one in heard] for heard in entries)
        self._heard: dict[Part, list[list[bytes]]] = {part: [] for part in Part}
        self._bytes = dict.fromkeys(Part, 0)
        self._part = Part.OUTSIDE
        self._is_kept = True
        self._gap = self._end = ""

    @property
    def gap(self) -> str:
        """Why a new rank could not hear all of the current part again; empty while it can."""
        return self._end or self._gap

    @gap.setter
    def gap(self, why: str) -> None:
        self._gap = why

    @property
    def keeps(self) -> bool:
        """Whether what is heard now is noted."""
        return self._is_kept and not self.gap

    def tear(self, why: str) -> None:
        """What happens from here on cannot be done again: up to the next step, or after one for good.

        Args:
            why: in words.
        """
        self._gap = why
        if self._part is not Part.STEP:  # a new rank would come by here again
            self._end = why

    def enter(self, part: Part) -> None:
        """The script has come to a new body, to the end of a step, or out of its loop over epochs.

        Raises:
            PromiseBroken: when the script has not made all the exchanges that it made before: it does not run the same
                way twice.
        """
        if self._told[self._part] and part is not Part.OUTSIDE:
            raise PromiseBroken("The script did not run the same way a second time, so its rank cannot be replaced.")
        self._part, self.gap = part, ""
        if part is not Part.STEP:
            self._forget(Part.BODY)
        self._forget(Part.STEP)

    def _forget(self, part: Part) -> None:
        self._heard[part].clear()
        self._bytes[part] = 0

    @property
    def replays(self) -> bool:
        """Whether the next exchange is one that the others have passed."""
        return bool(self._told[self._part])

    def peek(self) -> list[bytes]:
        """What `next` will return."""
        return self._told[self._part][0]

    def next(self) -> list[bytes]:
        """What the others heard in the next exchange."""
        heard = self._told[self._part].popleft()
        self.note(heard)
        return heard

    def note(self, heard: Sequence[bytes]) -> None:
        """Note what an exchange told."""
        if not self.keeps:
            return
        self._bytes[self._part] += sum(map(len, heard)) + 64
        if self._bytes[self._part] > MOST_BYTES:
            self.gap = f"the script exchanged more than {MOST_BYTES >> 20} MiB since then"
            return
        self._heard[self._part].append(list(heard))

    @contextmanager
    def unkept(self, why: str) -> Iterator[None]:
        """Exchanges that a new rank will not make: it takes over what they led to.

        Args:
            why: no rank can be replaced in the middle of them.
        """
        before, self._is_kept, self.gap = self.gap, False, why
        yield
        self._is_kept, self.gap = True, before

    def encode(self) -> str:
        """What a new rank needs."""
        return json.dumps(
            {part: [[base64.b64encode(one).decode() for one in heard] for heard in self._heard[part]] for part in Part}
        )
