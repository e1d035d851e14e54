"""Which collectives are measured, with which sizes, on how many ranks, and what each must reach. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20

GLOO, WINDOWS, ORDINARY, BY_TORCH = "Gloo", "windows", "ordinary tensors", "torch.distributed"
"""The sides: stock; our handle on tensors in shared windows, and on ordinary ones; our backend."""
COPY, STREAM, REWRITE = "memcpy", "copy past the caches", "rewrite in place"
LIMITS = (COPY, STREAM, REWRITE)
"""Ways to touch as many bytes as an update must; the fastest one is its limit."""
LEAST_WORK = "least work"
"""The additions and copies of a collective in windows between two exchanges of flags, without a library: their limit."""
LEAST_COPIES = "least copies"
"""The least number of copies through shared memory, without a library: the limit of ordinary tensors."""


@dataclass(frozen=True)
class Case:
    """One operation on one size."""

    row: str
    """Of the scoreboard."""
    collective: str
    num_bytes: int
    """Of the largest tensor of a rank, in float32."""
    cold: bool = False
    """Whether the buffers have left all caches when they are used; hot is where the last operation left them."""
    goals: tuple[tuple[str, float], ...] = ()
    """The least ratio to Gloo, by side."""
    limit_goal: float = 0.0
    """The share of the limit that windows must reach."""

    @property
    def what(self) -> str:
        place = " cold" if self.cold else " hot" if self.num_bytes >= 64 * KIB else ""
        return (
            self.collective if self.collective == "barrier" else f"{self.collective} {size_text(self.num_bytes)}{place}"
        )


def size_text(num_bytes: int) -> str:
    """As short as possible: `4 B`, `64 KiB`, `25 MiB`."""
    for size, name in ((MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= size:
            return f"{num_bytes // size} {name}"
    return f"{num_bytes} B"


def of_two_ranks() -> list[Case]:
    """Rows C1 to C4."""
    large = [Case("C1", "all_reduce", n * MIB, True, ((WINDOWS, 8.0),), 0.8) for n in (25, 64, 128)]
    middle = [
        Case("C2", "all_reduce", n * KIB, cold, ((WINDOWS, goal),))
        for n in (64, 256, 1024, 4096, 16384)
        for cold, goal in ((False, 25.0), (True, 12.0))
    ]
    small = [
        Case("C3", "all_reduce", n, False, ((WINDOWS, 100.0), (ORDINARY, 100.0), (BY_TORCH, 20.0)))
        for n in (4, KIB, 4 * KIB)
    ]
    names = ("broadcast", "all_gather", "reduce_scatter", "send", "all_to_all", "barrier")
    others = [
        Case("C4", name, num_bytes, num_bytes > 64 * KIB and name != "barrier", ((WINDOWS, 8.0),))
        for name in names
        for num_bytes in ((MIB,) if name == "barrier" else (64 * KIB, MIB, 16 * MIB))
    ]
    return [*large, *middle, *small, *others]


def of_many_ranks() -> list[Case]:
    """Row C9, for more ranks than cores: one large size, and small ones that must not collapse."""
    return [
        Case("C9", "all_reduce", 64 * MIB, True, ((WINDOWS, 6.0),)),
        *(Case("C9", "all_reduce", n, False, ((WINDOWS, 1.0), (ORDINARY, 1.0))) for n in (4, 4 * KIB, 256 * KIB)),
    ]
