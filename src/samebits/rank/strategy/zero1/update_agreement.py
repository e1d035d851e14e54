"""What ranks compare before an update that they make in parts."""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.errors import UsageError
from samebits.rank.strategy.agreement import bit_sums
from samebits.rank.strategy.replica.memory import ParameterMemory
from samebits.rank.transport.contract import Transport

_grad = attrgetter("grad")

UPDATE = "optimizer.step"
SIMPLE = (bool, int, float, str, type(None))
_SIMPLE_TYPES = frozenset(SIMPLE)


def require_agreement(
    optimizer: Optimizer,
    parameters: Sequence[nn.Parameter],
    transport: Transport,
    where: str,
    sums: Sequence[int],
    *,
    wrote: bool,
) -> tuple[list[nn.Parameter], bool]:
    """Raise `UsageError` on every rank if options, gradients or `sums` differ. Collective: call it on every rank.

    Args:
        parameters: all of its parameters, in an order that is the same on every rank.
        sums: more numbers that must be equal, over the bits of the model. Empty: they are not compared.
        wrote: whether this rank's script wrote to parameters; may differ between ranks.

    Returns:
        The parameters that have a gradient, and whether any rank's script wrote to parameters.
    """
    # [Note: why ranks agree before each update]
    # Under `ddp`, a learning rate that depends on the rank lets models drift apart, which is found later. If each rank updates
    # a part of one model, nothing drifts: the model would just be wrong.
    presence = [gradient is not None for gradient in map(_grad, parameters)]
    updated = list(compress(parameters, presence))
    options = [_options(group) for group in optimizer.param_groups]
    gradients = bit_sums([p.grad for p in updated if p.grad is not None]) if sums else []
    bits = [zlib.crc32(repr(gradients).encode()), *sums] if sums else []
    mine = [zlib.crc32(bytes(presence)), zlib.crc32(repr(options).encode()), bits]
    frames = transport.exchange(UPDATE, b"%d" % wrote + json.dumps(mine).encode(), where)
    # The first byte is whether this rank's script wrote to parameters, which is no disagreement: it is not compared.
    reports = [frame[1:] for frame in frames]
    if len(set(reports)) > 1:
        name = type(optimizer).__name__
        decoded = [json.loads(data) for data in reports]
        if len({one[1] for one in decoded}) > 1:
            raise _other_options(name, transport.all_gather_object(options, UPDATE, where))
        if len({one[0] for one in decoded}) > 1:
            raise UsageError(
                f"{name}.step(): some parameters have a gradient on some ranks only.",
                "Set and delete the same gradients on every rank.",
            )
        raise UsageError(
            f"{name}.step(): gradients or parameters differ between ranks.",
            "Look for what depends on the rank outside the lanes: a gradient or a parameter that was written to on "
            "some ranks only.",
        )
    return updated, any(frame[:1] == b"1" for frame in frames)


def _options(group: Mapping[str, Any]) -> list[list[Any]]:
    """The numbers and strings of a parameter group."""
    return [
        [key, value if type(value) in _SIMPLE_TYPES else _simple(value)]
        for key, value in group.items()
        if key not in ("params", "param_names")
    ]


def _simple(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, (tuple, list)):
        return [_simple(item) for item in value]
    return value if isinstance(value, SIMPLE) else None


def _other_options(name: str, reports: Sequence[list[list[list[Any]]]]) -> UsageError:
    """The error that names the option that differs."""
    for rank, groups in enumerate(reports[1:], 1):
        for number, (first, other) in enumerate(zip(reports[0], groups, strict=False)):
            for (key, value), (other_key, other_value) in zip(first, other, strict=False):
                if (key, value) != (other_key, other_value):
                    return UsageError(
                        f"{name} has {key}={value} on rank 0 but {other_key}={other_value} on rank {rank} (group {number}).",
                        "Make no option depend on the rank: each rank updates a part of one model.",
                    )
    return UsageError(
        f"{name} has different parameter groups on different ranks.", "Add and change the same groups on every rank."
    )


@dataclass(frozen=True)
class Stretch:
    """One rank's parameters that are side by side in memory."""

    owner: int
    """The rank that updates them."""
    values: Tensor
    """1-D, contiguous, part of `flat`; the gaps between parameters are the same on every rank."""
    flat: Tensor
    """The arena's flat."""


class Visibility(ParameterMemory, ABC):
    """Memory for parameters, and how updates become visible.

    Every rank reports whether it `was_written`, calls `take_over` if any was, updates its stretches, and calls
    `after_update`.
    """

    is_shared = False
    """Whether `allocate` makes memory once for all ranks."""

    def was_written(self) -> bool:
        """Whether the script wrote to parameters in a way that others do not see yet. Not a collective."""
        return False

    def take_over(self) -> None:
        """Let all ranks see what the scripts wrote. Collective: call it on every rank.

        No rank may read or write parameters meanwhile.
        """

    @abstractmethod
    def after_update(self, stretches: Sequence[Stretch]) -> None:
        """Wait until this rank sees the new values of all `stretches`. Collective: call it on every rank.

        Args:
            stretches: the same on every rank, in the same order.
        """


class BroadcastParameters(Visibility):
    """Visibility for ranks with their own parameters: each stretch's owner broadcasts it, from and into the arena.

    40 MiB between 2 ranks took 11 ms over Gloo, as messages between pairs did; its all-gather took 46 ms.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def after_update(self, stretches: Sequence[Stretch]) -> None:
        for stretch in stretches:
            self._transport.broadcast(stretch.values, stretch.owner)
