"""Which collectives are measured; one operation as each side makes it, on buffers of its own; a check that all compute the same.

Runs in ranks. All numbers are float32. `whole` is the tensor of the case's size, `part` an equal share of it:
all_gather makes whole from parts, reduce_scatter parts from wholes. all_to_all makes a part of the same size from whole; the
others work on whole in place. `send` is there and back between neighbours.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.limits import KIB, MIB, Bare, Way, WindowWay
from samebits.rank.transport.local.native import compiled

Act = Callable[[], object]

WINDOWS, ORDINARY, BY_TORCH = "windows", "ordinary tensors", "torch.distributed"
"""Our sides beside Gloo: our handle on tensors in shared windows, and on ordinary ones; our backend."""

KINDS = {"barrier": 0, "all_reduce": 1, "reduce_scatter": 3, "broadcast": 4, "all_gather": 5}
BARE_KINDS = ("all_reduce", "reduce_scatter", "all_to_all", "all_gather", "broadcast", "send")
FLOAT32, SUM, NO_ROOT, FOREVER_S = 1, 0, -1, 600.0
ELEMENT, LINE = 4, 64
"""Bytes of a number, and of a cache line, at which every tensor begins."""


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


@dataclass(frozen=True)
class Buffer:
    """What one operation works on."""

    whole: Tensor
    part: Tensor


def stride(num_bytes: int) -> int:
    """Where the next tensor begins."""
    return -(-num_bytes // LINE) * LINE


def part_bytes(case: Case, num_ranks: int) -> int:
    """The size of `part`."""
    return case.num_bytes if case.collective == "all_to_all" else max(case.num_bytes // num_ranks, ELEMENT)


def pool_bytes(case: Case, count: int, num_ranks: int) -> int:
    """The bytes that this many buffers of a case need."""
    return count * (stride(case.num_bytes) + stride(part_bytes(case, num_ranks)))


def buffers(memory: Tensor, case: Case, count: int, num_ranks: int) -> list[Buffer]:
    """Cut `memory` (float32, one dimension) into this many buffers, filled with zeros."""
    whole, part = (stride(n) // ELEMENT for n in (case.num_bytes, part_bytes(case, num_ranks)))
    size, share = case.num_bytes // ELEMENT, part_bytes(case, num_ranks) // ELEMENT
    memory[: count * (whole + part)].zero_()
    starts = range(0, count * (whole + part), whole + part)
    return [Buffer(memory[at : at + size], memory[at + whole : at + whole + share]) for at in starts]


def window_memory(group: compiled.Group, num_bytes: int) -> tuple[compiled.Window, Tensor]:
    """Collective: a new shared window, to be kept, and this rank's region of it as float32."""
    window = group.allocate(num_bytes)
    address = window.address(group.rank)
    return window, torch.frombuffer((ctypes.c_char * num_bytes).from_address(address), dtype=torch.float32)


def by_handle(group: compiled.Group, collective: str, buffer: Buffer) -> Act:
    """Through our compiled group."""
    whole, part, count = buffer.whole.data_ptr(), buffer.part.data_ptr(), buffer.whole.numel()
    if collective == "all_reduce":
        return partial(group.all_reduce, whole, count, FLOAT32, SUM)
    if collective == "send":
        return partial(_there_and_back, group, whole, count * ELEMENT)
    if collective == "all_to_all":
        counts = [count // group.world_size] * group.world_size
        ins, outs = ([at + peer * counts[0] * ELEMENT for peer in range(len(counts))] for at in (whole, part))
        return partial(group.run_all_to_all, FLOAT32, ins, outs, counts, counts)
    root, size, inputs, outputs = {
        "barrier": (NO_ROOT, 0, [], []),
        "broadcast": (0, count, [whole], [whole]),
        "all_gather": (NO_ROOT, buffer.part.numel(), [part], [whole]),
        "reduce_scatter": (NO_ROOT, buffer.part.numel(), [whole], [part]),
    }[collective]
    return partial(group.run, KINDS[collective], FLOAT32, SUM, root, size, inputs, outputs)


def by_torch(group: dist.ProcessGroup, collective: str, buffer: Buffer) -> Act:
    """Through torch.distributed, whatever the group's backend."""
    return {
        "barrier": partial(dist.barrier, group=group),
        "all_reduce": partial(dist.all_reduce, buffer.whole, group=group),
        "broadcast": partial(dist.broadcast, buffer.whole, 0, group=group),
        "all_gather": partial(dist.all_gather_into_tensor, buffer.whole, buffer.part, group=group),
        "reduce_scatter": partial(dist.reduce_scatter_tensor, buffer.part, buffer.whole, group=group),
        "all_to_all": partial(dist.all_to_all_single, buffer.part, buffer.whole, group=group),
        "send": partial(_there_and_back_by_torch, group, buffer.whole),
    }[collective]


def by_least_copies(bare: Bare, shared: int, way: Way, group: compiled.Group, collective: str, buffer: Buffer) -> Act:
    """Without any library: the least number of copies through shared memory (bare_copies.cpp)."""
    source, target, count = _operands(collective, buffer, group.world_size)
    kind = BARE_KINDS.index(collective)
    return partial(bare.exchange, shared, kind, group.rank, group.world_size, source, target, count, *way)


def by_least_work(
    bare: Bare,
    flags: int,
    way: WindowWay,
    group: compiled.Group,
    window: compiled.Window,
    collective: str,
    buffer: Buffer,
) -> Act:
    """Without any library, in windows: additions and copies between two exchanges of flags (bare_windows.cpp)."""
    source, target, count = _operands(collective, buffer, group.world_size)
    own = window.address(group.rank)
    apart = [window.address(rank) - own for rank in range(group.world_size)]
    tensors = (ctypes.c_size_t * (2 * len(apart)))(*(at + far for far in apart for at in (source, target)))
    kind = BARE_KINDS.index(collective)
    return partial(bare.in_windows, flags, kind, group.rank, group.world_size, tensors, count, *way)


def _operands(collective: str, buffer: Buffer, num_ranks: int) -> tuple[int, int, int]:
    """Addresses of what is read and written, and how many numbers: of a share where they differ."""
    whole, part = buffer.whole.data_ptr(), buffer.part.data_ptr()
    source, target = {"reduce_scatter": (whole, part), "all_to_all": (whole, part), "all_gather": (part, whole)}.get(
        collective, (whole, whole)
    )
    return source, target, buffer.whole.numel() // (1 if source == target else num_ranks)


def _there_and_back(group: compiled.Group, data: int, num_bytes: int) -> None:
    peer = group.rank ^ 1
    calls = [group.send, group.receive] if group.rank % 2 == 0 else [group.receive, group.send]
    for call in calls:
        group.wait(call(data, num_bytes, FLOAT32, peer, 0), FOREVER_S)


def _there_and_back_by_torch(group: dist.ProcessGroup, data: Tensor) -> None:
    peer = group.rank() ^ 1
    for call in (dist.send, dist.recv) if group.rank() % 2 == 0 else (dist.recv, dist.send):
        call(data, peer, group=group)


def check(collective: str, act: Act, buffer: Buffer, rank: int, num_ranks: int) -> bool:
    """Whether one operation's result is exactly right. Whole numbers, so the order of adding does not matter.

    The buffer holds zeros afterwards.
    """
    if collective == "barrier":
        act()
        return True
    for tensor in (buffer.whole, buffer.part):
        tensor.copy_(_pattern(tensor.numel(), rank))
    act()
    result = buffer.part if collective in {"reduce_scatter", "all_to_all"} else buffer.whole
    good = torch.equal(result, _expected(collective, buffer, rank, num_ranks))
    buffer.whole.zero_()
    buffer.part.zero_()
    return good


def _pattern(count: int, rank: int) -> Tensor:
    return torch.arange(count, dtype=torch.float32).remainder_(61.0).add_(rank)


def _expected(collective: str, buffer: Buffer, rank: int, num_ranks: int) -> Tensor:
    count, share = buffer.whole.numel(), buffer.part.numel()
    if collective == "broadcast":
        return _pattern(count, 0)
    if collective == "send":  # the even rank gets its own numbers back
        return _pattern(count, rank - rank % 2)
    if collective == "all_gather":
        return torch.cat([_pattern(share, peer) for peer in range(num_ranks)])
    if collective == "all_to_all":
        mine = slice(rank * count // num_ranks, (rank + 1) * count // num_ranks)
        return torch.cat([_pattern(count, peer)[mine] for peer in range(num_ranks)])
    total = torch.stack([_pattern(count, peer) for peer in range(num_ranks)]).sum(0)
    return total if collective == "all_reduce" else total[rank * share : (rank + 1) * share]
