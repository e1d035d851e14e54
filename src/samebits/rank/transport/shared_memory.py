"""The transport between the CPU ranks of one node: shared memory, no network stack. See docs/design/shared-memory.md.

Reductions of tensors that `allocate` made need no copy: each rank adds up one slice of all ranks' partials, in the lane
tree's order, and writes it to all ranks.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from samebits.errors import EnvironmentFailure, PeerLost, SamebitsError, UsageError
from samebits.protocol.journal.waiting_note import range_of_wait, subject
from samebits.protocol.layout.lane_tree import Node, children
from samebits.protocol.layout.placement import Placement
from samebits.rank.caller import where
from samebits.rank.transport.alone import AloneTransport
from samebits.rank.transport.contract import Pending, Sent, SharedOnce, Transport
from samebits.rank.transport.local.native import ABORTED, DISAGREEMENT, LOST, NO_MEMORY, SAME_CALLS, compiled
from samebits.rank.transport.local.rendezvous import meet

BROADCAST, ALL_GATHER = 4, 5
"""Kinds of operations, as the compiled part numbers them."""

DTYPES = {
    torch.float64: 0,
    torch.float32: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.int8: 4,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.uint8: 8,
    torch.bool: 9,
}
"""As the compiled part numbers them."""

BYTE = DTYPES[torch.uint8]

MORE_MEMORY = "Use fewer ranks or a smaller model, or raise this process's limits (`ulimit -v`, its control group)."

MOST_PARTS = 255
"""The most partial sums of all ranks together: each has a byte in the compiled part's programs."""

FOREVER_S = 7 * 86400.0

Returned = TypeVar("Returned")


def _guarded(call: Callable[..., Returned]) -> Callable[..., Returned]:
    """Raise the compiled part's errors as ours."""

    @functools.wraps(call)
    def guarded(*args: object) -> Returned:
        try:
            return call(*args)
        except compiled.GroupError as error:
            raise _error_for(*error.args) from None
        except OSError as error:
            # A limit of this process, of descriptors or of memory.
            raise EnvironmentFailure(f"{error}. {MORE_MEMORY}") from None

    return guarded


def _error_for(trouble: int, text: str) -> SamebitsError:
    if trouble == DISAGREEMENT:
        return UsageError(text, SAME_CALLS)
    if trouble in {LOST, ABORTED}:
        return PeerLost(text, is_dead=trouble == LOST and " left the group" not in text)
    return EnvironmentFailure(f"{text}. {MORE_MEMORY}" if trouble == NO_MEMORY else text)


def _where() -> str:
    """The calling line, and what the exchange is about; called only when ranks wait for long, or something is wrong."""
    return subject.with_line(where())


def tree_program(subtrees: Sequence[Sequence[Node]], root: Node | None = None) -> bytes:
    """The order in which to add all ranks' partials: postfix, a byte per leaf (rank by rank) and 255 for an addition.

    Args:
        subtrees: for each rank, the nodes of the lane tree that it has; together they cover `root`.
        root: what comes out; by default the sum over all lanes.
    """
    leaves = {node: number for number, node in enumerate(itertools.chain.from_iterable(subtrees))}

    def postfix(node: Node) -> list[int]:
        if node in leaves:
            return [leaves[node]]
        left, right = children(node)
        return [*postfix(left), *postfix(right), 255]

    return bytes(postfix(root or (0, max(node[1] for node in leaves))))


def add_up(terms: Sequence[Tensor], out: Tensor, program: bytes, scale: float) -> None:
    """Add up this rank's own terms (1-D, contiguous, as long as `out`), as a group would; `out` may be one of them."""
    addresses = [term.data_ptr() for term in terms]
    compiled.add_up(DTYPES[out.dtype], out.numel(), addresses, out.data_ptr(), program, scale)


def program_of(placement: Placement) -> tuple[bytes, bytes]:
    """Return the program that adds up all partials of a placement, and how many of them each rank has.

    Raises:
        UsageError: when there are more partials than the compiled part can add up.
    """
    subtrees = [placement.subtrees(rank) for rank in range(placement.num_ranks)]
    if (num_parts := sum(map(len, subtrees))) > MOST_PARTS:
        raise UsageError(
            f"{placement.num_lanes} lanes on {placement.num_ranks} ranks make {num_parts} partial sums, but shared "
            f"memory can add up at most {MOST_PARTS}.",
            "Use a multiple of the number of ranks as lanes, or fewer ranks.",
        )
    return tree_program(subtrees), bytes(map(len, subtrees))


class SharedMemoryTransport(Transport):
    """The CPU ranks of one node. Collective: construct it on every rank.

    Args:
        store: shared by the ranks; nothing else uses its keys.
        names: the numbers of these ranks in the run; by default counted from 0.

    Raises what `meet` raises.
    """

    begins_early = False

    def __init__(self, store: Store, rank: int, world_size: int, names: Sequence[int] = ()) -> None:
        self.rank, self.world_size = rank, world_size
        self._store, self._names = store, names or range(world_size)
        self._group = _guarded(functools.partial(meet, names=self._names))(store, rank, world_size, _where)
        self._splits = 0
        self._windows: dict[int, compiled.Window] = {}
        self._under_way: list[tuple[compiled.Message, Tensor]] = []
        """Messages that are not delivered yet, and their tensors, which must live even without a waiter."""
        self._programs: dict[Placement, tuple[bytes, bytes]] = {}
        self._everyone = range(world_size)
        self.shares_memory = self.all(compiled.can_tell_writes(), "shares_memory")

    @_guarded
    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        whole, size = self._group.all_gather_bytes(data), len(data)
        return [whole[size * rank : size * (rank + 1)] for rank in self._everyone]

    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        if placement not in self._programs:
            self._programs[placement] = program_of(placement)
        return _TreeSum(self._group, partials, out, self._programs[placement])

    @_guarded
    def broadcast(self, tensor: Tensor, source: int) -> None:
        # The source reads this memory, and the others write it.
        address = tensor.data_ptr()
        with range_of_wait("broadcast", [self._names[source]] if source != self.rank else ()):
            self._group.run(BROADCAST, BYTE, 0, source, tensor.nbytes, [address], [address])

    @_guarded
    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        tensor = tensor.contiguous()
        everyone = tensor.new_empty((self.world_size, *tensor.shape))
        with range_of_wait("all_gather"):
            self._group.run(ALL_GATHER, BYTE, 0, -1, tensor.nbytes, [tensor.data_ptr()], [everyone.data_ptr()])
        return list(everyone.unbind(0))

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        self._splits += 1
        if all(len(ranks) == 1 for ranks in groups):
            return AloneTransport()
        number = next(number for number, ranks in enumerate(groups) if self.rank in ranks)
        store = PrefixStore(f"split {self._splits}/{number}", self._store)
        names = [self._names[rank] for rank in groups[number]]
        return SharedMemoryTransport(store, groups[number].index(self.rank), len(groups[number]), names)

    @_guarded
    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        message = self._group.send(data.data_ptr(), data.nbytes, BYTE, destination, tag)
        # The receiver reads the tensor's own memory, so it must live until then.
        self._under_way = [(other, sent) for other, sent in self._under_way if not other.finished]
        self._under_way.append((message, data))
        return _Sent(self._group, message, self._names[destination])

    @_guarded
    def receive(self, out: Tensor, source: int, tag: int) -> None:
        message = self._group.receive(out.data_ptr(), out.nbytes, BYTE, source, tag)
        with range_of_wait("receive", [self._names[source]]):
            self._group.wait(message, FOREVER_S)

    @_guarded
    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if device.type != "cpu" or not size:
            return super().allocate(size, dtype, device)
        window = self._group.allocate(size * dtype.itemsize)
        address = window.address(self.rank)
        self._windows[address] = window
        return tensor_over(window, address, size * dtype.itemsize).view(dtype)

    @_guarded
    def allocate_once(self, size: int, dtype: torch.dtype, device: torch.device) -> SharedOnce:
        if device.type != "cpu":
            return super().allocate_once(size, dtype, device)
        num_bytes = size * dtype.itemsize
        window = self._group.allocate(num_bytes, once=True)
        self._windows[window.address(0)] = window
        view = window.private_view(0)
        master = tensor_over(window, window.address(0), num_bytes).view(dtype)
        mine = tensor_over(view, view.address, num_bytes).view(dtype)
        return SharedOnce(mine, master, view.was_written, view.forget_writes)

    def free(self, tensor: Tensor) -> None:
        window = self._windows.pop(tensor.data_ptr(), None)
        if window is not None:
            self._group.release(window)

    @_guarded
    def begin_range(
        self, partials: Sequence[Tensor], size: int, wanted: slice, out: Tensor, order: tuple[bytes, bytes]
    ) -> compiled.Operation:
        """Begin a sum of which this rank gets a part. Collective: call it on every rank; nothing is waited for.

        Args:
            partials: this rank's terms, 1-D and contiguous.
            size: the number of elements of each.
            wanted: the elements that this rank gets.
            out: where they go: 1-D memory that nothing else uses.
            order: a program (see `tree_program`), and how many terms each rank has; the same on every rank.
        """
        addresses = [partial.data_ptr() for partial in partials]
        wants = wanted.start, wanted.stop - wanted.start, out.data_ptr()
        return self._group.begin_range_sum(DTYPES[out.dtype], size, addresses, *wants, *order)

    @_guarded
    def begin_spread(
        self, terms: Sequence[Tensor], held: slice, out: Tensor, program: bytes, scale: float
    ) -> compiled.Operation:
        """Begin to add up what each rank alone has, a part of the sum; all get all parts. Collective, waits for nothing.

        Args:
            terms: of this rank's part; they may be its place in `out`.
            held: the elements that this rank's part is; the parts of all ranks cover `out`.
            out: 1-D and contiguous.
            program: see `tree_program`; the same on every rank.
            scale: what the sum is multiplied by.
        """
        addresses = [term.data_ptr() for term in terms]
        where_to = held.start, held.stop - held.start, out.data_ptr()
        return self._group.begin_spread(DTYPES[out.dtype], out.numel(), addresses, *where_to, program, scale)

    @_guarded
    def wait(self, operation: compiled.Operation, about: Callable[[], str] | None = None) -> None:
        """Wait until it is over. `about` returns what it is part of, for traces."""
        with range_of_wait("the exchange of gradients in the node", about=about):
            self._group.wait(operation, FOREVER_S)

    @_guarded
    def look(self) -> None:
        self._group.look()

    def give_up(self, lost: PeerLost) -> PeerLost:
        self._group.abort(str(lost), LOST if lost.is_dead else ABORTED)
        return lost

    def close(self) -> None:
        self._group.leave()


def tensor_over(owner: object, address: int, num_bytes: int) -> Tensor:
    """A 1-D uint8 tensor over memory that lives at least as long as `owner`, which the tensor keeps alive."""
    memory = (ctypes.c_char * num_bytes).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]  # torch holds `memory`
    return torch.frombuffer(memory, dtype=torch.uint8)


class _Sent:
    def __init__(self, group: compiled.Group, message: compiled.Message, name: int) -> None:
        self._group, self._message, self._name = group, message, name

    @_guarded
    def wait(self) -> object:
        with range_of_wait("send", [self._name]):
            self._group.wait(self._message, FOREVER_S)
        return None


class _TreeSum(Pending):
    """A sum that starts at `advance`: with as many ranks as cores, no core is free to begin earlier."""

    def __init__(
        self, group: compiled.Group, partials: Sequence[Tensor], out: Tensor, order: tuple[bytes, bytes]
    ) -> None:
        self._group, self._partials, self._out, self._order = group, partials, out, order
        self._operation: compiled.Operation | None = None

    @_guarded
    def advance(self, scale: float = 1.0) -> None:
        out = self._out
        self._operation = self._group.begin_tree_sum(
            DTYPES[out.dtype],
            out.numel(),
            [partial.data_ptr() for partial in self._partials],
            out.data_ptr(),
            *self._order,
            scale,
        )

    @_guarded
    def finish(self) -> None:
        assert self._operation is not None
        with range_of_wait("the exchange of gradients", about=subject.of):
            self._group.wait(self._operation, FOREVER_S)
