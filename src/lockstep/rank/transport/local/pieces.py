"""In which pieces tensors go through shared memory, and from where on past the caches: from the caches that the machine tells.

None of the numbers changes a bit. What was measured is in docs/design/0033: where the caches are known, one size is within
5 % of the best for every tensor, so nothing is measured at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LEAST_SWAPPED, MOST_SWAPPED = 128 << 10, 256 << 10
LEAST_STREAMED, MOST_STREAMED = 4 << 20, 32 << 20
"""Cloud machines tell of third caches that they share with strangers; more than this was never tried."""


@dataclass(frozen=True)
class Sizes:
    """In bytes. The defaults are used where the machine does not tell its caches."""

    swapped: int = LEAST_SWAPPED
    """Of a piece that two ranks exchange. There are four blocks for such pieces."""
    streamed_from: int = MOST_STREAMED
    """Of arrays together: results of operations on so many bytes are written past the caches."""


def sizes_for(caches: Mapping[int, int]) -> Sizes:
    """The sizes for a CPU with these caches (bytes by level): four pieces fill the second one, and the third one is passed by
    what does not fit into it.
    """
    usual = Sizes()
    return Sizes(
        min(max(caches.get(2, 0) // 4, LEAST_SWAPPED), MOST_SWAPPED),
        min(max(caches.get(3, usual.streamed_from), LEAST_STREAMED), MOST_STREAMED),
    )
