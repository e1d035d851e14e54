"""Every collective of torch.distributed with random arguments: ours, Gloo's, and what it must be.

Inputs are small whole numbers that every rank can make for every rank, so the right result is known exactly, in every
dtype and in any order of adding up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
MOVED_ONLY = (torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn)
OF_GLOO = {torch.float64, torch.float32, torch.float16, torch.int8, torch.int32, torch.int64, torch.uint8}
SIZES = (0, 1, 2, 7, 64, 1000, 1025, 5000, 70_000, 300_001)
OPS = {
    dist.ReduceOp.SUM: lambda rows: rows.sum(0),
    dist.ReduceOp.PRODUCT: lambda rows: rows.prod(0),
    dist.ReduceOp.MIN: lambda rows: rows.amin(0),
    dist.ReduceOp.MAX: lambda rows: rows.amax(0),
    dist.ReduceOp.AVG: lambda rows: rows.mean(0),
}


@dataclass
class Case:
    """One call; the same on every rank of the group."""

    number: int
    random: random.Random
    ours: dist.ProcessGroup
    gloo: dist.ProcessGroup
    size: int = field(init=False)
    rank: int = field(init=False)
    dtype: torch.dtype = field(init=False)
    count: int = field(init=False)
    root: int = field(init=False)
    is_async: bool = field(init=False)
    strided: bool = field(init=False)

    def __post_init__(self) -> None:
        self.size, self.rank = self.ours.size(), self.ours.rank()
        self.count = self.random.choice(SIZES)
        self.root = self.random.randrange(self.size)
        self.is_async = self.random.random() < 0.4
        self.strided = self.random.random() < 0.3
        self.dtype = torch.float32

    def reduced(self) -> dist.ReduceOp:
        """Choose dtype and operation of a reduction."""
        op = self.random.choice(list(OPS))
        self.dtype = self.random.choice(FLOATING if op == dist.ReduceOp.AVG else FLOATING + WHOLE)
        return op

    def moved(self) -> None:
        """Choose a dtype that is copied."""
        self.dtype = self.random.choice(FLOATING + WHOLE + MOVED_ONLY)

    def of(self, rank: int, count: int, salt: int = 0) -> Tensor:
        """The input of a rank: whole numbers from 0 to 3, float64."""
        values = torch.arange(count) * (2 * rank + 3) + self.number + rank + 5 * salt
        return (values % 4).double()

    def tensor(self, values: Tensor) -> Tensor:
        """As the call gets it: in the dtype, contiguous or every second element of a longer one."""
        made = values.to(self.dtype)
        if not self.strided:
            return made
        wide = torch.empty((len(made), 2), dtype=self.dtype)
        wide[:, 0] = made
        return wide[:, 0]

    def empty(self, count: int) -> Tensor:
        return self.tensor(torch.zeros(count, dtype=torch.float64))

    def everyone(self, count: int) -> Tensor:
        return torch.stack([self.of(rank, count) for rank in range(self.size)])

    def global_rank(self, rank: int) -> int:
        return dist.get_global_rank(self.ours, rank)

    def is_for_gloo(self, *ops: dist.ReduceOp) -> bool:
        return self.dtype in OF_GLOO and self.count > 0 and dist.ReduceOp.AVG not in ops and not self.strided

    def finish(self, work: dist.Work | None) -> None:
        assert (work is not None) == self.is_async
        if work is not None:
            work.wait()

    def equal(self, found: Tensor, expected: Tensor) -> None:
        rounded = expected.to(found.dtype)
        compared = torch.complex128 if found.is_complex() else torch.float64
        assert torch.equal(found.to(compared), rounded.to(compared)), (
            self.number, self.dtype, self.count, self.strided, self.is_async, self.size,
        )  # fmt: skip


def all_reduce(case: Case) -> None:
    op = case.reduced()
    found = case.tensor(case.of(case.rank, case.count))
    theirs = found.clone()
    case.finish(dist.all_reduce(found, op, case.ours, case.is_async))
    case.equal(found, OPS[op](case.everyone(case.count)))
    if case.is_for_gloo(op):
        dist.all_reduce(theirs, op, case.gloo)
        assert torch.equal(found, theirs)


def all_reduce_complex(case: Case) -> None:
    found = torch.complex(case.of(case.rank, case.count), case.of(case.rank, case.count, 1)).to(torch.complex64)
    dist.all_reduce(found, group=case.ours)
    assert torch.equal(found.real.double(), case.everyone(case.count).sum(0))
    expected = sum(case.of(rank, case.count, 1) for rank in range(case.size))
    assert torch.equal(found.imag.double(), expected)


def reduce(case: Case) -> None:
    op = case.reduced()
    found = case.tensor(case.of(case.rank, case.count))
    case.finish(dist.reduce(found, case.global_rank(case.root), op, case.ours, case.is_async))
    expected = OPS[op](case.everyone(case.count)) if case.rank == case.root else case.of(case.rank, case.count)
    case.equal(found, expected)


def reduce_scatter(case: Case) -> None:
    op = case.reduced()
    uneven = case.random.random() < 0.3
    counts = [case.count + 3 * rank if uneven else case.count for rank in range(case.size)]
    inputs = [case.tensor(case.of(case.rank, count, part)) for part, count in enumerate(counts)]
    found = case.empty(counts[case.rank])
    case.finish(dist.reduce_scatter(found, inputs, op, case.ours, case.is_async))
    rows = torch.stack([case.of(rank, counts[case.rank], case.rank) for rank in range(case.size)])
    case.equal(found, OPS[op](rows))


def reduce_scatter_tensor(case: Case) -> None:
    op = case.reduced()
    found, whole = case.empty(case.count), case.tensor(case.of(case.rank, case.count * case.size))
    if case.random.random() < 0.3 and not case.strided:
        found = whole.chunk(case.size)[case.rank] if case.count else found
    case.finish(dist.reduce_scatter_tensor(found, whole, op, case.ours, case.is_async))
    own = slice(case.rank * case.count, (case.rank + 1) * case.count)
    case.equal(found, OPS[op](case.everyone(case.count * case.size)[:, own]))


def broadcast(case: Case) -> None:
    case.moved()
    found = case.tensor(case.of(case.rank, case.count))
    theirs = found.clone()
    case.finish(dist.broadcast(found, case.global_rank(case.root), case.ours, case.is_async))
    case.equal(found, case.of(case.root, case.count))
    if case.is_for_gloo():
        dist.broadcast(theirs, case.global_rank(case.root), case.gloo)
        assert torch.equal(found, theirs)


def all_gather(case: Case) -> None:
    case.moved()
    uneven = case.random.random() < 0.3
    counts = [case.count + 3 * rank if uneven else case.count for rank in range(case.size)]
    found = [case.empty(count) for count in counts]
    own = case.tensor(case.of(case.rank, counts[case.rank]))
    case.finish(dist.all_gather(found, own, case.ours, case.is_async))
    for rank, tensor in enumerate(found):
        case.equal(tensor, case.of(rank, counts[rank]))
    if case.is_for_gloo() and not uneven:
        theirs = [case.empty(count) for count in counts]
        dist.all_gather(theirs, own, case.gloo)
        assert all(map(torch.equal, found, theirs))


def all_gather_into_tensor(case: Case) -> None:
    case.moved()
    found, own = case.empty(case.count * case.size), case.tensor(case.of(case.rank, case.count))
    place = case.random.randrange(case.size)
    if case.random.random() < 0.4 and not case.strided and case.count:  # in place, or in a place that is overwritten
        own = found[place * case.count : (place + 1) * case.count].copy_(own)
    case.finish(dist.all_gather_into_tensor(found, own, case.ours, case.is_async))
    case.equal(found, case.everyone(case.count).flatten())


def gather(case: Case) -> None:
    case.moved()
    found = [case.empty(case.count) for _ in range(case.size)] if case.rank == case.root else None
    own = case.tensor(case.of(case.rank, case.count))
    case.finish(dist.gather(own, found, case.global_rank(case.root), case.ours, case.is_async))
    for rank, tensor in enumerate(found or []):
        case.equal(tensor, case.of(rank, case.count))


def scatter(case: Case) -> None:
    case.moved()
    parts = [case.tensor(case.of(case.root, case.count, part)) for part in range(case.size)]
    found = case.empty(case.count)
    mine = parts if case.rank == case.root else None
    case.finish(dist.scatter(found, mine, case.global_rank(case.root), case.ours, case.is_async))
    case.equal(found, case.of(case.root, case.count, case.rank))


def all_to_all(case: Case) -> None:
    case.moved()
    most = min(case.count, 5000)
    counts = [[case.random.randrange(most + 1) for _ in range(case.size)] for _ in range(case.size)]
    inputs = [case.tensor(case.of(case.rank, counts[case.rank][to], to)) for to in range(case.size)]
    found = [case.empty(counts[source][case.rank]) for source in range(case.size)]
    case.finish(dist.all_to_all(found, inputs, case.ours, case.is_async))
    for source, tensor in enumerate(found):
        case.equal(tensor, case.of(source, counts[source][case.rank], case.rank))


def all_to_all_single(case: Case) -> None:
    case.moved()
    counts = [[case.random.randrange(50) for _ in range(case.size)] for _ in range(case.size)]
    if even := case.random.random() < 0.5:
        counts = [[case.count % 10_000] * case.size] * case.size
    sends, receives = counts[case.rank], [counts[source][case.rank] for source in range(case.size)]
    own = torch.cat([case.of(case.rank, count, to) for to, count in enumerate(sends)])
    found = case.empty(sum(receives))
    splits = (None, None) if even else (receives, sends)
    case.finish(dist.all_to_all_single(found, case.tensor(own), *splits, case.ours, case.is_async))
    case.equal(found, torch.cat([case.of(source, count, case.rank) for source, count in enumerate(receives)]))


def messages(case: Case) -> None:
    """Everybody to everybody, with tags in a different order than they are asked for."""
    case.moved()
    tags = [3, 1, 2]
    mine = {tag: case.tensor(case.of(case.rank, case.count, tag)) for tag in tags}
    peers = [rank for rank in range(case.size) if rank != case.rank]
    works = [dist.isend(mine[tag], case.global_rank(peer), case.ours, tag) for peer in peers for tag in tags]
    for peer in peers:
        for tag in sorted(tags):
            found = case.empty(case.count)
            dist.recv(found, case.global_rank(peer), case.ours, tag)
            case.equal(found, case.of(peer, case.count, tag))
    for work in works:
        work.wait()


def from_anybody(case: Case) -> None:
    case.moved()
    if case.rank == case.root:
        for _ in range(case.size - 1):
            found = case.empty(case.count)
            source = dist.recv(found, group=case.ours, tag=case.number)
            case.equal(found, case.of(dist.get_group_rank(case.ours, source), case.count))
    else:
        own = case.tensor(case.of(case.rank, case.count))
        dist.send(own, case.global_rank(case.root), case.ours, tag=case.number)


def round_about(case: Case) -> None:
    """batch_isend_irecv around a ring; more than fits into the rings of bytes."""
    case.dtype = torch.float64
    to, source = (case.rank + 1) % case.size, (case.rank - 1) % case.size
    own, found = case.tensor(case.of(case.rank, case.count)), case.empty(case.count)
    pairs = [
        dist.P2POp(dist.isend, own, case.global_rank(to), case.ours),
        dist.P2POp(dist.irecv, found, case.global_rank(source), case.ours),
    ]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    case.equal(found, case.of(source, case.count))


def several_at_once(case: Case) -> None:
    """Many under way, waited for in a different order; and a barrier between."""
    case.dtype = torch.float32
    found = [case.tensor(case.of(case.rank, min(case.count, 70_000), salt)) for salt in range(20)]
    works = [dist.all_reduce(tensor, group=case.ours, async_op=True) for tensor in found]
    dist.barrier(case.ours)
    for work in reversed(works):
        work.wait()
    for salt, tensor in enumerate(found):
        case.equal(tensor, sum(case.of(rank, len(tensor), salt) for rank in range(case.size)))


def objects(case: Case) -> None:
    gathered = [None] * case.size
    dist.all_gather_object(gathered, {"rank": case.rank, "text": "x" * case.rank}, group=case.ours)
    assert gathered == [{"rank": rank, "text": "x" * rank} for rank in range(case.size)]
    shown = [("from", case.rank)]
    dist.broadcast_object_list(shown, case.global_rank(case.root), group=case.ours)
    assert shown == [("from", case.root)]
    part = [None]
    dist.scatter_object_list(part, [*range(case.size)], case.global_rank(case.root), group=case.ours)
    assert part == [case.rank]
    got = [None] * case.size if case.rank == case.root else None
    dist.gather_object(case.rank, got, case.global_rank(case.root), group=case.ours)
    assert got is None or got == [*range(case.size)]


def coalesced(case: Case) -> None:
    case.dtype = torch.float32
    found = [case.tensor(case.of(case.rank, case.count, salt)) for salt in range(3)]
    with dist._coalescing_manager(case.ours, async_ops=case.is_async) as together:
        for tensor in found:
            dist.all_reduce(tensor, group=case.ours)
    together.wait() if case.is_async else None
    for salt, tensor in enumerate(found):
        case.equal(tensor, sum(case.of(rank, case.count, salt) for rank in range(case.size)))
    gathered = [case.empty(case.count * case.size) for _ in range(2)]
    with dist._coalescing_manager(case.ours):
        for salt, tensor in enumerate(gathered):
            dist.all_gather_into_tensor(tensor, case.of(case.rank, case.count, salt).float(), group=case.ours)
    parts = [case.empty(case.count) for _ in range(2)]
    with dist._coalescing_manager(case.ours):
        for tensor, whole in zip(parts, gathered, strict=True):
            dist.reduce_scatter_tensor(tensor, whole.contiguous(), group=case.ours)
    for salt, tensor in enumerate(parts):
        case.equal(tensor, case.size * case.of(case.rank, case.count, salt))
    with dist._coalescing_manager(case.ours, torch.device("cpu"), async_ops=True) as together:
        row = torch.arange(case.size).float()
        dist.all_to_all_single(out := torch.empty(case.size), row, group=case.ours, async_op=True)
    together.wait()
    assert out.eq(case.rank).all()


COLLECTIVES = (
    all_reduce, all_reduce_complex, reduce, reduce_scatter, reduce_scatter_tensor, broadcast, all_gather,
    all_gather_into_tensor, gather, scatter, all_to_all, all_to_all_single, messages, from_anybody, round_about,
    several_at_once, objects, coalesced,
)  # fmt: skip


def fuzz(seed: int, rounds: int, groups: list[tuple[dist.ProcessGroup, dist.ProcessGroup] | None]) -> None:
    """Call them in a random order on random groups; a None is a group that this rank is not in."""
    shared = random.Random(seed)
    order = [*COLLECTIVES * rounds]
    shared.shuffle(order)
    for number, collective in enumerate(order):
        chosen = groups[shared.randrange(len(groups))]
        if chosen is not None:
            try:
                collective(Case(number, random.Random(seed * 1000 + number), *chosen))
            except Exception as error:
                error.add_note(f"in {collective.__name__}, case {number}")
                raise
