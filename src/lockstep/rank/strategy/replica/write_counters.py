"""Whether a lane wrote to buffers that lanes should leave alone, on GPUs, as torch's counters of writes say.

To compare their bits would be to wait for the device after every lane. Counters miss what is written past torch: through
`.data`, or by a kernel of one's own. So the first lanes are compared by bits too, and counters that were wrong once are
trusted no more; later, the device compares, and what it finds is read when somebody reads the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lockstep.errors import UsageError

COMPARED_LANES = 4
"""The number of lanes after which bits are compared, as `CHECKED_LANES` of parameters."""


class WriteCounters:
    """The counters of some buffers.

    Args:
        buffers: as the module holds them.
    """

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._buffers = buffers
        self._is_right = not any(buffer.is_inference() for buffer in buffers)  # those count nothing
        self._num_compared = 0
        self._noted: list[int] = []

    def note(self) -> None:
        """What is written from here on is the lane's."""
        if self._is_right:
            self._noted = self._now()

    def _now(self) -> list[int]:
        return [buffer._version for buffer in self._buffers]  # noqa: SLF001 - torch's own name for a documented idea

    def counted(self) -> set[int]:
        """Which buffers were written to since `note`, by their place."""
        if not self._is_right:
            return set()
        return {place for place, (now, noted) in enumerate(zip(self._now(), self._noted, strict=True)) if now != noted}

    def suffice(self) -> bool:
        """Whether bits need not be compared: the lane wrote to no buffer, and the counters can be trusted."""
        return self._is_right and self._num_compared >= COMPARED_LANES and not self.counted()

    def learn(self, counted: set[int], changed: set[int]) -> None:
        """Bits were compared: those that `changed` since `note`, and what was `counted` before anybody else wrote."""
        self._is_right = self._is_right and changed <= counted
        self._num_compared += 1


def unseen(names: Sequence[str]) -> UsageError:
    """The error when the device found a change that the counters did not tell, in one of the buffers `names`."""
    shown = ", ".join(map(repr, names[:3])) + ", ..." * (len(names) > 3)
    return UsageError(
        f"A buffer (of {shown}) was changed in a lane of an earlier step in a way that torch does not count, as through "
        ".data; it was not in the first steps, so the change was not carried on.",
        "Write to the buffer itself, under torch.no_grad(): buffer.copy_(value), buffer.lerp_(value, weight).",
    )
