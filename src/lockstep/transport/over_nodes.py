"""The transport between CPU ranks on several nodes: shared memory inside a node, Gloo between counterparts.

A sum goes three ways. In its node's memory each rank adds up the slice that it carries of all the node's partials; it
exchanges that slice with the ranks that carry the same one on the other nodes, adds what came in the lane tree's order, and
scales once; then the node's ranks take the slices from each other. So the bytes that leave a node are those of a ring
(`layout.crossing`), and all ranks carry some. Small things are gathered in the node, exchanged by the nodes' first
ranks, and handed around.

A rank that learns that another is gone gives the whole transport up: it ends its connections, and breaks its node's
groups, so every rank on every node raises `PeerLost`, wherever it waits.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from lockstep.caller import where
from lockstep.errors import LockstepError, PeerLost, WorldError
from lockstep.journal.waiting_note import subject
from lockstep.layout.crossing import Crossing, carrier, choose_crossing, piece
from lockstep.layout.nodes import Nodes
from lockstep.layout.placement import Placement
from lockstep.transport.across import Across, bytes_of
from lockstep.transport.alone import AloneTransport
from lockstep.transport.contract import Pending, Sent, Transport
from lockstep.transport.errands import Errands
from lockstep.transport.scratch import Scratch
from lockstep.transport.shared_memory import SharedMemoryTransport, add_up, tree_program
from lockstep.transport.watch import Watch

SMALL_BYTES = 32 * 1024
"""Up to this size only the first rank of each node exchanges: latency decides."""

CHUNK_BYTES = 4 << 20
"""Larger sums go in chunks."""

FIRST_OWN_TAG = 2**30
"""Tags from here on belong to `send` and `receive`; below them are those of collectives, and below `FIRST_SUM_TAG` those
that frames belong to, which ranks may call earlier or later among sums that begin during backward."""
FIRST_SUM_TAG = 2**29

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _all_or_lost(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """What one rank loses, all of them lose: a `PeerLost` gives the transport up; so does a dead connection."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        transport: OverNodesTransport = self.transport
        try:
            transport.check()
            return method(self, *args, **named)
        except PeerLost as lost:
            raise transport.lose(lost) from None
        except RuntimeError as error:
            if transport.across.is_broken(error):
                raise transport.lose(PeerLost(_ENDED, is_dead=True)) from None
            raise

    return guarded


_ENDED = "A connection between nodes ended. If a rank failed, its own error says why."


class OverNodesTransport(Transport):
    """CPU ranks on several nodes. Collective: construct it on every rank.

    Args:
        store: shared by the ranks; nothing else uses its keys.
        rank: of this process.
        nodes: which ranks are on which node.
        names: the numbers of these ranks in the run; by default counted from 0.

    Raises:
        WorldError: on every rank, when the ranks of a node cannot share memory, or nodes cannot connect.
    """

    def __init__(self, store: Store, rank: int, nodes: Nodes, names: Sequence[int] = ()) -> None:
        self.rank, self.world_size = rank, nodes.num_ranks
        self.nodes: Nodes = nodes
        self._names = names or range(self.world_size)
        self._node = nodes.node_of(rank)
        self._mates = nodes.ranks(self._node)
        self._store = store
        self._frames, self._sums = self._meet_in_node()
        firsts = [nodes.ranks(node)[0] for node in range(nodes.num_nodes)]
        self.across = Across(PrefixStore("across", store), rank, self._names, firsts)
        self._lost: PeerLost | None = None
        self._losing = threading.Lock()
        self._frame_tag = self._sum_tag = self._splits = 0
        self.sender = Errands("lockstep sender")
        self._children: weakref.WeakSet[OverNodesTransport | SharedMemoryTransport] = weakref.WeakSet()
        self.handing: list[tuple[SharedMemoryTransport, Any]] = []
        self.scratch = Scratch()
        self._plans: dict[tuple[Placement, bool], _Plan] = {}
        self._watch = Watch(self.across, self._groups, self.give_up)

    @property
    def transport(self) -> OverNodesTransport:
        """This one; what is guarded has one."""
        return self

    def _meet_in_node(self) -> tuple[Transport, Transport]:
        """Make two groups of this node's ranks: frames come at other times among sums that began early."""
        mates = [self._names[rank] for rank in self._mates]
        place, problem = self.rank - self._mates.start, ""
        made: list[Transport] = [AloneTransport(), AloneTransport()]
        try:
            if len(mates) > 1:
                made = [
                    SharedMemoryTransport(
                        PrefixStore(f"{purpose} of node {self._node}", self._store), place, len(mates), mates
                    )
                    for purpose in ("frames", "sums")
                ]
        except PeerLost:
            raise
        except WorldError as error:  # on every rank of the node
            problem = str(error)
        if place == 0:
            self._store.set(f"memory/{self._node}", problem)
        for node in range(self.nodes.num_nodes):
            if problem := self._store.get(f"memory/{node}").decode():
                raise WorldError(problem)
        frames, sums = made
        return frames, sums

    @property
    def _groups(self) -> list[SharedMemoryTransport]:
        return [group for group in (self._frames, self._sums) if isinstance(group, SharedMemoryTransport)]

    def check(self) -> None:
        """Raise `PeerLost` if the transport was given up."""
        if self._lost is not None:
            raise self._lost

    def give_up(self, lost: PeerLost) -> PeerLost:
        """Let every rank's exchanges fail, now and from now on; return what to raise. Any thread may call it."""
        with self._losing:
            if self._lost is None:
                self._lost = lost
                for group in self._groups:
                    group.give_up(lost)
                self.across.cut()
                for child in [*self._children]:
                    child.give_up(lost)
            return PeerLost(str(self._lost), is_dead=self._lost.is_dead)

    def lose(self, lost: PeerLost) -> PeerLost:
        """`give_up`, and end this rank's threads; not for those themselves."""
        lost = self.give_up(lost)
        self._end_threads()
        return lost

    def _end_threads(self) -> None:
        self._watch.stop()
        self.sender.stop()
        self.across.waiter.stop()

    @_all_or_lost
    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        if not data:
            return [b"" for _ in self._gather(torch.zeros(1, dtype=torch.uint8), is_small=True)]
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return [row.numpy().tobytes() for row in self._gather(mine, is_small=True)]

    @_all_or_lost
    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        tensor = tensor.contiguous()
        if not tensor.numel():
            return [tensor.clone() for _ in range(self.world_size)]
        rows = self._gather(bytes_of(tensor), is_small=tensor.nbytes * max(self.nodes.sizes) <= SMALL_BYTES)
        return [row.clone().view(tensor.dtype).view(tensor.shape) for row in rows]

    def _gather(self, mine: Tensor, *, is_small: bool) -> list[Tensor]:
        """Every rank's bytes, of equal number: gather them in the node, exchange the nodes' blocks, hand these around."""
        block = mine.numel() * max(self.nodes.sizes)
        tag = self._next_frame_tag()
        everyone = mine.new_zeros((self.nodes.num_nodes, block))
        own = torch.cat(self._frames.all_gather(mine))
        everyone[self._node, : own.numel()] = own
        if is_small:
            if self.rank == self._mates.start:
                self._exchange_small(everyone, tag)
            self._frames.broadcast(everyone, 0)
        else:
            self._exchange_large(everyone, tag)
        rows = everyone.view(self.nodes.num_nodes, -1, mine.numel())
        return [rows[node, row] for node, size in enumerate(self.nodes.sizes) for row in range(size)]

    def _exchange_small(self, everyone: Tensor, tag: int) -> None:
        """Fill in the other nodes' rows; called by the nodes' first ranks."""
        others = self._other_nodes
        receives = [self.across.receive(everyone[node], node, tag, small=True) for node in others]
        sends = [self.across.send(everyone[self._node], node, tag, small=True) for node in others]
        firsts = [self.nodes.ranks(node)[0] for node in others]
        self.across.wait([*zip(receives + sends, firsts * 2, strict=True)], f"all_gather ({where()})")

    def _exchange_large(self, everyone: Tensor, tag: int) -> None:
        """Fill in the other nodes' rows; every rank of a node exchanges some parts."""
        others, works = self._other_nodes, []
        parts = [piece(everyone.shape[1], part, self._num_parts) for part in range(self._num_parts)]
        for number, part in enumerate(parts):
            if self._carrier(number) == self.rank:
                for node in others:
                    peer = carrier(self.nodes, node, number, self._num_parts)
                    works.append((self.across.receive(everyone[node, part], peer, tag), peer))
                    works.append((self.across.send(everyone[self._node, part], peer, tag), peer))
        self.across.wait(works, f"all_gather ({where()})")
        for number, part in enumerate(parts):
            for node in others:
                self._frames.broadcast(everyone[node, part], self._carrier(number) - self._mates.start)

    @_all_or_lost
    def broadcast(self, tensor: Tensor, source: int) -> None:
        data, tag, home = bytes_of(tensor), self._next_frame_tag(), self.nodes.node_of(source)
        num_parts = self._num_parts if data.numel() > SMALL_BYTES else 1
        parts = [piece(data.numel(), part, num_parts) for part in range(num_parts)]
        if home == self._node:
            self._frames.broadcast(data, source - self._mates.start)
        works = []
        for number, part in enumerate(parts):
            if carrier(self.nodes, self._node, number, num_parts) != self.rank:
                continue
            for node in self._other_nodes if home == self._node else [home]:
                peer = carrier(self.nodes, node, number, num_parts)
                move = self.across.send if home == self._node else self.across.receive
                works.append((move(data[part], peer, tag), peer))
        self.across.wait(works, f"broadcast from rank {self._names[source]} ({where()})")
        if home != self._node:
            for number, part in enumerate(parts):
                self._frames.broadcast(
                    data[part], carrier(self.nodes, self._node, number, num_parts) - self._mates.start
                )

    @property
    def _num_parts(self) -> int:
        return max(self.nodes.sizes)

    def _carrier(self, part: int) -> int:
        return carrier(self.nodes, self._node, part, self._num_parts)

    @property
    def _other_nodes(self) -> list[int]:
        return [node for node in range(self.nodes.num_nodes) if node != self._node]

    def _next_frame_tag(self) -> int:
        """A tag that the same exchange has on every rank."""
        self._frame_tag = (self._frame_tag + 1) % FIRST_SUM_TAG
        return self._frame_tag

    def next_sum_tag(self) -> int:
        """A tag that the same sum has on every rank."""
        self._sum_tag = (self._sum_tag + 1) % FIRST_SUM_TAG
        return FIRST_SUM_TAG + self._sum_tag

    @_all_or_lost
    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        key = placement, out.nbytes <= SMALL_BYTES
        if key not in self._plans:
            self._plans[key] = _Plan(choose_crossing(self.nodes, placement, is_small=key[1]), self.rank)
        size = out.numel() if key[1] else -(-out.numel() // -(-out.nbytes // CHUNK_BYTES))
        begun = [
            _Sum(
                self,
                self._sums,
                self._plans[key],
                [partial[start : start + size] for partial in partials],
                out[start : start + size],
            )
            for start in range(0, out.numel(), size)
        ]
        return _Sums(begun)

    def settle(self) -> None:
        """Take part in what the node's ranks hand around, before this one waits for another node."""
        while self.handing:
            group, operation = self.handing.pop()
            group.wait(operation)

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        self._splits += 1
        number = next(number for number, ranks in enumerate(groups) if self.rank in ranks)
        ranks, store = groups[number], PrefixStore(f"split {self._splits}/{number}", self._store)
        if len(ranks) == 1:
            return AloneTransport()
        nodes, names = self.nodes.among(ranks), [self._names[rank] for rank in ranks]
        child: OverNodesTransport | SharedMemoryTransport
        if nodes.num_nodes == 1:
            child = SharedMemoryTransport(store, ranks.index(self.rank), len(ranks), names)
        else:
            child = OverNodesTransport(store, ranks.index(self.rank), nodes, names)
        self._children.add(child)
        return child

    @_all_or_lost
    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        if destination in self._mates:
            return self._frames.send(data, destination - self._mates.start, tag)
        return _Message(self, data, destination, self.across.send(data, destination, FIRST_OWN_TAG + tag))

    @_all_or_lost
    def receive(self, out: Tensor, source: int, tag: int) -> None:
        if source in self._mates:
            self._frames.receive(out, source - self._mates.start, tag)
        else:
            self.across.wait([(self.across.receive(out, source, FIRST_OWN_TAG + tag), source)], "receive")

    @_all_or_lost
    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        problem, made = "", None
        try:
            made = self._sums.allocate(size, dtype, device)
        except PeerLost:
            raise
        except WorldError as error:  # on every rank of the node
            problem = str(error)
        if failed := [text for text in self.all_gather_object(problem, "allocate") if text]:
            if made is not None:
                self._sums.free(made)
            raise WorldError(failed[0])
        assert made is not None
        return made

    def free(self, tensor: Tensor) -> None:
        self._sums.free(tensor)

    def close(self) -> None:
        self._end_threads()
        for group in (self._frames, self._sums):
            group.close()
        if self._lost is None:
            self._lost = PeerLost("This rank has left the others.")
            self.across.close()


class _Message:
    """A message to another node."""

    def __init__(self, transport: OverNodesTransport, data: Tensor, peer: int, work: Any) -> None:
        self.transport, self._data, self._peer, self._work = transport, data, peer, work

    @_all_or_lost
    def wait(self) -> object:
        self.transport.across.wait([(self._work, self._peer)], "send")
        return None


class _Sums(Pending):
    """A large sum in chunks: one is added up while the next is on its way."""

    def __init__(self, chunks: Sequence[_Sum]) -> None:
        self._chunks = chunks

    def advance(self, scale: float = 1.0) -> None:
        for chunk in self._chunks:
            chunk.advance(scale)

    def finish(self) -> None:
        for chunk in self._chunks:
            chunk.finish()

    def give_up(self) -> None:
        for chunk in self._chunks:
            chunk.give_up()


class _Plan:
    """What one rank does in every sum of a crossing."""

    def __init__(self, crossing: Crossing, rank: int) -> None:
        self.crossing, nodes = crossing, crossing.nodes
        self.node = nodes.node_of(rank)
        mates = nodes.ranks(self.node)
        self.first_mate, self.is_alone = mates.start, len(mates) == 1
        self.subtrees = [crossing.subtrees(node) for node in range(nodes.num_nodes)]
        self.mine = self.subtrees[self.node]
        self.others = [node for node in range(nodes.num_nodes) if node != self.node]
        self.parts = crossing.parts(rank)
        terms = [crossing.placement.subtrees(mate) for mate in mates]
        below = [[[term for term in each if root[0] <= term[0] < root[1]] for each in terms] for root in self.mine]
        self.programs = [
            (tree_program(each, root), bytes(map(len, each))) for each, root in zip(below, self.mine, strict=True)
        ]
        self.nodes = sorted(node for subtrees in self.subtrees for node in subtrees)
        """All nodes' subtrees, in lane order."""
        self.program = tree_program([self.nodes])
        mine = terms[rank - mates.start]
        self.terms = [[mine.index(term) for term in each[rank - mates.start]] for each in below]
        """For each subtree of the node, the numbers of this rank's partials that belong to it."""


class _Sum(Pending):
    """A sum on its way; see `layout.crossing`."""

    def __init__(
        self, transport: OverNodesTransport, group: Transport, plan: _Plan, partials: Sequence[Tensor], out: Tensor
    ) -> None:
        self.transport, self._plan, self._out = transport, plan, out
        self._partials = partials  # must live as long as others read them
        self._group = group if isinstance(group, SharedMemoryTransport) else None
        self._tag = transport.next_sum_tag()
        self._carried = plan.crossing.carried(transport.rank, out.numel())
        size = self._carried.stop - self._carried.start
        self._adding: list[Any] = []
        self._works: list[tuple[Any, int]] = []
        self._handing: Any = None
        self._sent = threading.Event()
        if self._group is None:
            own = [partial[self._carried] for partial in partials]
        else:
            own = [transport.scratch.take(out, size) for _ in plan.mine]
            for row, numbers, program in zip(own, plan.terms, plan.programs, strict=True):
                terms = [partials[number] for number in numbers]
                self._adding.append(self._group.begin_range(terms, out.numel(), self._carried, row, *program))
        self._own = own
        self._rows = dict(zip(plan.mine, own, strict=True))
        """What this rank carries of every subtree of every node."""
        for node in plan.others:
            self._rows |= {subtree: transport.scratch.take(out, size) for subtree in plan.subtrees[node]}
        self._receive()
        if self._group is None:
            self._send()
        else:
            transport.sender.do(self._send_when_added)

    def _pieces(self, part: int) -> list[slice]:
        """For each node, the elements of a part that it adds up."""
        crossing, size = self._plan.crossing, self._out.numel()
        whole = piece(size, part, crossing.num_parts)
        if crossing.in_one_step:
            return [whole] * crossing.nodes.num_nodes
        return [crossing.share(whole, node) for node in range(crossing.nodes.num_nodes)]

    def _in_row(self, row: Tensor, elements: slice) -> Tensor:
        start = self._carried.start
        return row[elements.start - start : elements.stop - start]

    def _receive(self) -> None:
        plan, across = self._plan, self.transport.across
        for part in plan.parts:
            mine = self._pieces(part)[plan.node]
            for node in plan.others if mine.stop > mine.start else []:
                peer = plan.crossing.carrier(node, part)
                for subtree in plan.subtrees[node]:
                    place = self._in_row(self._rows[subtree], mine)
                    self._works.append((across.receive(place, peer, self._tag), peer))

    def _send_when_added(self) -> None:
        """Wait for what the node adds up, and send it; in the sender's thread."""
        try:
            for operation in self._adding if self._group is not None else []:
                self._group.wait(operation)
            self._send()
        except (PeerLost, RuntimeError) as error:
            self.transport.give_up(error if isinstance(error, PeerLost) else PeerLost(_ENDED, is_dead=True))
        except LockstepError as error:  # every rank of the node raises it by itself
            self.transport.give_up(PeerLost(str(error)))
        finally:
            self._sent.set()

    def _send(self) -> None:
        plan, across = self._plan, self.transport.across
        for part in plan.parts:
            pieces = self._pieces(part)
            for node in plan.others:
                if pieces[node].stop > pieces[node].start:
                    peer = plan.crossing.carrier(node, part)
                    for row in self._own:
                        work = across.send(self._in_row(row, pieces[node]), peer, self._tag)
                        self._works.append((work, peer))

    @_all_or_lost
    def give_up(self) -> None:
        self._exchange()
        self._give_back()

    def _exchange(self) -> None:
        """Wait until the nodes have each other's partials."""
        self.transport.settle()
        if self._group is not None:
            self._sent.wait()  # the sender notes for whom
            self.transport.check()
        self._wait()

    @property
    def _about(self) -> str:
        what = "the exchange of gradients"
        return what if subject.of is None else f"{what} ({subject.with_line(where())})"

    def _wait(self) -> None:
        self.transport.across.wait(self._works, self._about)
        self._works.clear()

    def _give_back(self) -> None:
        self.transport.scratch.give_back(
            row for row in self._rows.values() if self._group is not None or all(row is not own for own in self._own)
        )
        self._rows.clear()

    @_all_or_lost
    def advance(self, scale: float = 1.0) -> None:
        self._exchange()
        plan = self._plan
        if plan.crossing.in_one_step:
            if self._group is None:
                add_up([self._rows[node] for node in plan.nodes], self._out, plan.program, scale)
            else:
                self._spread([self._rows[node] for node in plan.nodes], plan.program, scale)
            return
        for part in plan.parts:
            self._add_share(self._pieces(part), part, scale)

    def _add_share(self, pieces: Sequence[slice], part: int, scale: float) -> None:
        plan, out, across = self._plan, self._out, self.transport.across
        mine = pieces[plan.node]
        terms = [self._in_row(self._rows[node], mine) for node in plan.nodes]
        add_up(terms, out[mine], plan.program, scale)
        for node in plan.others:
            peer, theirs = plan.crossing.carrier(node, part), pieces[node]
            if theirs.stop > theirs.start:
                self._works.append((across.receive(out[theirs], peer, self._tag), peer))
            if mine.stop > mine.start:
                self._works.append((across.send(out[mine], peer, self._tag), peer))

    def _spread(self, terms: Sequence[Tensor], program: bytes, scale: float) -> None:
        """Begin to hand around in the node what this rank carries."""
        assert self._group is not None
        self._handing = self._group.begin_spread(terms, self._carried, self._out, program, scale)
        self.transport.handing.append((self._group, self._handing))

    @_all_or_lost
    def finish(self) -> None:
        self._wait()
        if self._group is not None:
            if not self._plan.crossing.in_one_step:
                self._spread([self._out[self._carried]], COPY, 1.0)
            self._group.wait(self._handing)
        self._give_back()


COPY = bytes([0])
"""The program of a sum of one term."""
