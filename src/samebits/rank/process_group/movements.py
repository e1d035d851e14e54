"""The operations of a process group that copy: broadcast, all_gather, gather, scatter, all_to_all, send and receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from samebits.machine.torch_private import AllgatherOptions
from samebits.rank.process_group import exchange as kinds
from samebits.rank.process_group.arguments import (
    CollectiveMisused,
    all_of,
    check_count,
    check_list,
    check_same_dtype,
    for_moving,
    only,
    only_list,
    options,
)
from samebits.rank.process_group.membership import Membership
from samebits.rank.process_group.operands import Buffers, unspoilt
from samebits.rank.process_group.watched import seen
from samebits.rank.process_group.work import DONE

_BROADCAST, _ALL_GATHER = c10d.BroadcastOptions(), AllgatherOptions()
_GATHER, _SCATTER = c10d.GatherOptions(), c10d.ScatterOptions()


class Movements(Membership):
    """Tensors of every dtype, from one rank, from every rank, or between two."""

    def broadcast(  # type: ignore[override]  # torch's overloads in one
        self, tensors: Any, opts: Any = _BROADCAST, timeout: Any = None, *, root: int | None = None
    ) -> Any:
        """All tensors of every rank become the one of the root that `opts.rootTensor` names."""
        # Nearly every call ends here: plain tensors, and a caller that waits.
        if timeout is root is None and self.exchange.moves(kinds.BROADCAST, None, tensors, opts):
            return DONE
        given = {name: value for name, value in (("timeout", timeout), ("root", root)) if value is not None}
        return self._broadcast(tensors, opts, **given)

    @seen(1, "broadcast", "broadcast")
    def _broadcast(self, tensors: Any, opts: Any, timeout: Any = None, *, root: int | None = None) -> Any:
        opts = options(c10d.BroadcastOptions, opts, root=root, timeout=timeout)
        given, is_root = all_of(tensors), opts.rootRank == self.rank()
        if not 0 <= opts.rootTensor < len(given):
            raise CollectiveMisused(
                f"There is no tensor {opts.rootTensor} among {len(given)} to broadcast.",
                "Name the index of one of the tensors.",
            )
        tensor = given.pop(opts.rootTensor)
        dtype, width = for_moving(tensor.dtype)
        buffers = Buffers()
        address = [buffers.reads(tensor) if is_root else buffers.writes(tensor)]
        count = tensor.numel() * width
        if given:
            buffers.also(tensor, given)
        return self.exchange.call(
            kinds.BROADCAST,
            dtype,
            0,
            opts.rootRank,
            count,
            address,
            address,
            tensor.shape,
            buffers,
            [tensor, *given],
            opts,
        )

    @seen(2, "all_gather")
    def allgather(self, outputs: Any, inputs: Any, opts: Any = _ALL_GATHER, *, timeout: Any = None) -> Any:
        """`outputs[0][r]` becomes rank r's `inputs[0]`; the ranks' tensors may have different sizes.

        With several inputs there are as many lists, and each of them gets everything: rank 0's inputs, rank 1's, ...
        """
        opts = options(AllgatherOptions, opts, timeout=timeout)
        if isinstance(inputs, Tensor) or len(inputs) == 1:
            return self.all_gather_list(only_list(outputs), only(inputs), opts)
        given, count = all_of(inputs), len(inputs)
        if len(outputs) != count:
            raise CollectiveMisused(
                f"all_gather of {count} tensors for each rank needs {count} lists, not {len(outputs)}.",
                "Give it a list of outputs for each tensor.",
            )
        first, *others = outputs
        # torch's lists go rank by rank: every `count`th output belongs to the same input.
        works = [self.all_gather_list(first[index::count], tensor, _ALL_GATHER) for index, tensor in enumerate(given)]
        buffers = Buffers()
        for other in others:
            for source, target in zip(first, other, strict=True):
                buffers.also(source, [target])
        return self.together(works, opts.asyncOp, buffers)

    def all_gather_list(self, outputs: list[Tensor], tensor: Tensor, opts: Any = _ALL_GATHER) -> Any:
        """`outputs[r]` becomes rank r's `tensor`."""
        check_list(self.size(), "all_gather", outputs, tensor)
        dtype, width = for_moving(tensor.dtype)
        buffers, count = Buffers(), tensor.numel()
        targets = buffers.writes_all(outputs)
        address = buffers.reads(tensor)
        counts = [output.numel() * width for output in outputs]
        if min(counts) == max(counts):
            check_count("all_gather", "output", outputs[0].numel(), count)
            return self.exchange.call(
                kinds.ALL_GATHER, dtype, 0, -1, counts[0], [address], targets, tensor.shape, buffers, outputs, opts
            )
        # Of different sizes: each rank sends its whole tensor to all, as in all_to_all.
        size, sends = self.size(), [count * width] * self.size()
        return self.exchange.deal(dtype, [address] * size, targets, sends, counts, buffers, outputs, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = _ALL_GATHER) -> Any:
        """`output` becomes all ranks' `input`, one after the other; `input` may be this rank's part of it."""
        if self.exchange.moves(kinds.ALL_GATHER, output, input, opts):
            return DONE
        return self._all_gather_seen(output, input, opts)

    @seen(2, "all_gather_single", "all_gather_single")
    def _all_gather_seen(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        return self._all_gather_single(output, input, opts)

    def _all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        check_same_dtype("all_gather", output, input)
        check_count("all_gather", "output", output.numel(), input.numel() * self.size())
        dtype, width = for_moving(input.dtype)
        buffers = Buffers()
        count = input.numel() * width
        source, target = [buffers.reads(input)], [buffers.writes(output)]
        return self.exchange.call(
            kinds.ALL_GATHER, dtype, 0, -1, count, source, target, input.shape, buffers, [output], opts
        )

    _allgather_base = all_gather_single

    @seen(2, "all_gather_coalesced")
    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = _ALL_GATHER
    ) -> Any:
        inputs = unspoilt([[output] for output in outputs], inputs)
        works = [self._all_gather_single(*pair, _ALL_GATHER) for pair in zip(outputs, inputs, strict=True)]
        return self.together(works, opts.asyncOp)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @seen(2, "all_gather_coalesced")
    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], input_list: Sequence[Tensor], opts: Any = _ALL_GATHER
    ) -> Any:
        """`output_lists[r][i]` becomes rank r's `input_list[i]`."""
        columns = [list(column) for column in zip(*output_lists, strict=True)]
        given = unspoilt(columns, input_list)
        works = [self.all_gather_list(column, tensor) for column, tensor in zip(columns, given, strict=True)]
        return self.together(works, opts.asyncOp)

    @seen(2, "gather")
    def gather(
        self, outputs: Any, inputs: Any, opts: Any = _GATHER, timeout: Any = None, *, root: int | None = None
    ) -> Any:
        """On the root `outputs[0][r]` becomes rank r's `inputs[0]`."""
        opts = options(c10d.GatherOptions, opts, root=root, timeout=timeout)
        tensor, root = only(inputs), opts.rootRank
        dtype, width = for_moving(tensor.dtype)
        target: list[Tensor] = []
        if root == self.rank():
            target = only_list(outputs)
            check_list(self.size(), "gather", target, tensor)
            for output in target:
                check_count("gather", "output", output.numel(), tensor.numel())
        buffers = Buffers()
        source, targets = [buffers.reads(tensor)], buffers.writes_all(target)
        count = tensor.numel() * width
        return self.exchange.call(
            kinds.GATHER, dtype, 0, root, count, source, targets, tensor.shape, buffers, target, opts
        )

    @seen(2, "scatter")
    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = _SCATTER, timeout: Any = None, *, root: int | None = None
    ) -> Any:
        """`outputs[0]` becomes the root's `inputs[0][r]` on rank r."""
        opts = options(c10d.ScatterOptions, opts, root=root, timeout=timeout)
        output, root = only(outputs), opts.rootRank
        dtype, width = for_moving(output.dtype)
        source: list[Tensor] = []
        if root == self.rank():
            source = only_list(inputs)
            check_list(self.size(), "scatter", source, output)
            for tensor in source:
                check_count("scatter", "input", tensor.numel(), output.numel())
        buffers = Buffers()
        sources, target = buffers.reads_all(source), [buffers.writes(output)]
        count = output.numel() * width
        return self.exchange.call(
            kinds.SCATTER, dtype, 0, root, count, sources, target, output.shape, buffers, [output], opts
        )

    @seen(1, "send")
    def send(self, tensors: Any, destination: int, tag: int = 0) -> Any:
        tensor = only(tensors)
        return self.exchange.send(tensor, for_moving(tensor.dtype)[0], destination, tag)

    @seen(1, "recv")
    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        tensor = only(tensors)
        return self.exchange.receive(tensor, for_moving(tensor.dtype)[0], source, tag)

    @seen(1, "recvAnySource")
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        tensor = only(tensors)
        return self.exchange.receive(tensor, for_moving(tensor.dtype)[0], self.size(), tag)


_ALL_TO_ALL = c10d.AllToAllOptions()


class Dealing(Membership):
    """all_to_all over lists of tensors, or over the rows of one."""

    @seen(2, "all_to_all")
    def alltoall(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = _ALL_TO_ALL, *, timeout: Any = None
    ) -> Any:
        """`outputs[s]` becomes rank s's `inputs[r]` on rank r."""
        opts = options(c10d.AllToAllOptions, opts, timeout=timeout)
        check_list(self.size(), "all_to_all", outputs, inputs[0] if inputs else None)
        check_list(self.size(), "all_to_all", inputs, outputs[0])
        dtype, width = for_moving(inputs[0].dtype)
        buffers = Buffers()
        sends, receives = [each.numel() * width for each in inputs], [each.numel() * width for each in outputs]
        sources, targets = buffers.reads_all(inputs), buffers.writes_all(outputs)
        return self.exchange.deal(dtype, sources, targets, sends, receives, buffers, list(outputs), opts)

    @seen(2, "all_to_all")
    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int],
        opts: Any = _ALL_TO_ALL, *, timeout: Any = None,
    ) -> Any:  # fmt: skip
        """Rows of `input` go to the ranks, rows of `output` come from them; without splits the same number for each."""
        opts = options(c10d.AllToAllOptions, opts, timeout=timeout)
        check_same_dtype("all_to_all", output, input)
        dtype, width = for_moving(input.dtype)
        sends, receives = self._rows("input", input, input_splits), self._rows("output", output, output_splits)
        buffers = Buffers()
        source, target = buffers.reads(input), buffers.writes(output)
        sources, targets = _starts(source, sends, input.itemsize), _starts(target, receives, output.itemsize)
        sends, receives = [count * width for count in sends], [count * width for count in receives]
        return self.exchange.deal(dtype, sources, targets, sends, receives, buffers, [output], opts)

    alltoall_base = all_to_all_single

    def _rows(self, name: str, tensor: Tensor, splits: Sequence[int] | None) -> list[int]:
        """How many elements are for, or from, each rank."""
        size, rows = self.size(), tensor.shape[0] if tensor.dim() else 0
        if not splits:
            if rows % size:
                raise CollectiveMisused(
                    f"all_to_all of {rows} rows ({name}) between {size} ranks needs split sizes.",
                    "Pass output_split_sizes and input_split_sizes.",
                )
            return [tensor.numel() // size] * size
        if len(splits) != size or sum(splits) != rows or min(splits) < 0:
            raise CollectiveMisused(
                f"all_to_all needs {size} {name} split sizes that sum to {rows}, but they are {list(splits)}.",
                "Give one size for each rank of the group, adding up to the number of rows.",
            )
        row = tensor.numel() // rows if rows else 0
        return [count * row for count in splits]


def _starts(address: int, counts: Sequence[int], itemsize: int) -> list[int]:
    """Where consecutive parts with these numbers of elements begin."""
    starts = []
    for count in counts:
        starts.append(address)
        address += count * itemsize
    return starts
