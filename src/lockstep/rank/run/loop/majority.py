"""Who is wrong where ranks hold different bits: a pure decision by majority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PAIR = 2


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
        holds = f"{self._others}no longer hold{'s' if len(self.ranks) == 1 else ''} the same bits"
        if self.has_majority:
            return f"{holds} as the other ranks in {self.tensor!r}"
        doubt = "so one of the two is wrong" if len(self.ranks) == PAIR else "and most of them agree on none"
        return f"{holds} in {self.tensor!r}, {doubt}"

    @property
    def _others(self) -> str:
        others = [str(rank) for rank in self.ranks[1:]]
        if len(others) <= 1:
            return f"and rank {others[0]} " if others else ""
        return f"and {len(others)} more (ranks {', '.join(others[:-1])} and {others[-1]}) "


def first_damage(told: Sequence[Mapping[str, str]], part_of: Sequence[int] = ()) -> Damage | None:
    """The first tensor whose hash differs between ranks; None when none does.

    The tensor is the first one in the order of the first rank that has it; the decision is the same for any order of the
    ranks, up to their numbers.

    Args:
        told: for each rank, the hashes of its tensors by name.
        part_of: for each rank, which part of the model it holds; by default all hold the same.
    """
    part_of = part_of or [0] * len(told)
    for part in sorted(set(part_of)):
        ranks = [rank for rank, its in enumerate(part_of) if its == part]
        names = dict.fromkeys(name for rank in ranks for name in told[rank])
        for name in names:
            count = Counter(told[rank].get(name, "") for rank in ranks)
            right, most = count.most_common(1)[0]
            if len(count) > 1:
                has_majority = 2 * most > len(ranks)
                wrong = tuple(rank for rank in ranks if not has_majority or told[rank].get(name, "") != right)
                return Damage(name, wrong, has_majority)
    return None
