"""Who is wrong where ranks hold different bits: a pure decision by majority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Damage:
    """The first tensor that differs between ranks, and who is wrong."""

    tensor: str
    ranks: tuple[int, ...]
    """Those that differ from the majority; where there is none, all that were compared."""
    has_majority: bool

    @property
    def what(self) -> str:
        """The rest of a sentence that begins with `rank` and the first of `ranks`."""
        others = [f"rank {rank}" for rank in self.ranks[1:]]
        also = f"{', '.join(others[:-1])} and {others[-1]} " if len(others) > 1 else "".join(f"{o} " for o in others)
        joined = f"{', ' if len(others) > 1 else 'and ' if others else ''}{also}"
        holds = "no longer hold" if others else "no longer holds"
        if self.has_majority:
            return f"{joined}{holds} the same bits as the other ranks in {self.tensor!r}"
        doubt = "one of the two is wrong" if len(self.ranks) == 2 else "and most of them agree on none"
        link = ", so" if len(self.ranks) == 2 else ","
        return f"{joined}{holds} the same bits in {self.tensor!r}{link} {doubt}"


def first_damage(told: Sequence[Mapping[str, str]], stages: int = 1) -> Damage | None:
    """The first tensor whose hash differs between ranks; None when none does.

    The tensor is the first one in the order of the first rank that has it; the decision is the same for any order of the
    ranks, up to their numbers.

    Args:
        told: for each rank, the hashes of its tensors by name.
        stages: ranks that are a multiple of this apart hold the same.
    """
    for stage in range(min(stages, len(told))):
        ranks = range(stage, len(told), stages)
        names = dict.fromkeys(name for rank in ranks for name in told[rank])
        for name in names:
            count = Counter(told[rank].get(name, "") for rank in ranks)
            right, most = count.most_common(1)[0]
            if len(count) > 1:
                has_majority = 2 * most > len(ranks)
                wrong = tuple(rank for rank in ranks if not has_majority or told[rank].get(name, "") != right)
                return Damage(name, wrong, has_majority)
    return None
