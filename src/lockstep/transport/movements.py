"""Those operations of a process group that copy: broadcast, all_gather, gather, scatter, send and receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from lockstep.torch_private import AllgatherOptions
from lockstep.transport import exchange as kinds
from lockstep.transport.arguments import check_count, check_list, check_same_dtype, only, only_list
from lockstep.transport.buffers import Buffers
from lockstep.transport.encoding import for_moving
from lockstep.transport.membership import Membership

_BROADCAST, _ALL_GATHER = c10d.BroadcastOptions(), AllgatherOptions()
_GATHER, _SCATTER = c10d.GatherOptions(), c10d.ScatterOptions()


class Movements(Membership):
    """Tensors of every dtype, from one rank, from every rank, or between two."""

    def broadcast(self, tensors: Any, opts: Any = _BROADCAST, timeout: Any = None) -> Any:  # noqa: ARG002
        tensor = only(tensors)
        root, is_async = (opts, True) if isinstance(opts, int) else (opts.rootRank, opts.asyncOp)
        dtype, width = for_moving(tensor.dtype)
        buffers = Buffers()
        address = [buffers.reads(tensor) if root == self.rank() else buffers.writes(tensor)]
        count = tensor.numel() * width
        return self.exchange.call(
            kinds.BROADCAST, dtype, 0, root, count, address, address, buffers, [tensor], is_async=is_async
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = _ALL_GATHER) -> Any:
        """`outputs[0][r]` becomes rank r's `inputs[0]`; the ranks' tensors may have different sizes."""
        if not isinstance(opts, AllgatherOptions):
            opts = _ALL_GATHER
        target, tensor = only_list(outputs), only(inputs)
        return self._all_gather(target, tensor, opts.asyncOp)

    def _all_gather(self, outputs: list[Tensor], tensor: Tensor, is_async: bool) -> Any:
        check_list(self.size(), "all_gather", outputs, tensor)
        dtype, width = for_moving(tensor.dtype)
        buffers, count = Buffers(), tensor.numel()
        targets = buffers.writes_all(outputs)
        address = buffers.reads(tensor)
        counts = [output.numel() * width for output in outputs]
        if min(counts) == max(counts):
            check_count("all_gather", "output", outputs[0].numel(), count)
            return self.exchange.call(
                kinds.ALL_GATHER, dtype, 0, -1, counts[0], [address], targets, buffers, outputs, is_async=is_async
            )
        size, sends = self.size(), [count * width] * self.size()
        return self.exchange.deal(dtype, [address] * size, targets, sends, counts, buffers, outputs, is_async=is_async)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = _ALL_GATHER) -> Any:
        """`output` becomes all ranks' `input`, one after the other; `input` may be this rank's part of it."""
        check_same_dtype("all_gather", output, input)
        check_count("all_gather", "output", output.numel(), input.numel() * self.size())
        dtype, width = for_moving(input.dtype)
        buffers = Buffers()
        count = input.numel() * width
        source, target = [buffers.reads(input)], [buffers.writes(output)]
        return self.exchange.call(
            kinds.ALL_GATHER, dtype, 0, -1, count, source, target, buffers, [output], is_async=opts.asyncOp
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = _ALL_GATHER
    ) -> Any:
        works = [self.all_gather_single(*pair, _ALL_GATHER) for pair in zip(outputs, inputs, strict=True)]
        return self.together(works, opts.asyncOp)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]  # the names of its arguments differ

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], input_list: Sequence[Tensor], opts: Any = _ALL_GATHER
    ) -> Any:
        """`output_lists[r][i]` becomes rank r's `input_list[i]`."""
        columns = zip(*output_lists, strict=True)
        works = [
            self._all_gather(list(column), tensor, is_async=True)
            for column, tensor in zip(columns, input_list, strict=True)
        ]
        return self.together(works, opts.asyncOp)

    def gather(self, outputs: Any, inputs: Any, opts: Any = _GATHER, timeout: Any = None) -> Any:  # noqa: ARG002
        """On the root `outputs[0][r]` becomes rank r's `inputs[0]`."""
        tensor = only(inputs)
        root, is_async = (opts, True) if isinstance(opts, int) else (opts.rootRank, opts.asyncOp)
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
            kinds.GATHER, dtype, 0, root, count, source, targets, buffers, target, is_async=is_async
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = _SCATTER, timeout: Any = None) -> Any:  # noqa: ARG002
        """`outputs[0]` becomes the root's `inputs[0][r]` on rank r."""
        output = only(outputs)
        root, is_async = (opts, True) if isinstance(opts, int) else (opts.rootRank, opts.asyncOp)
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
            kinds.SCATTER, dtype, 0, root, count, sources, target, buffers, [output], is_async=is_async
        )

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Any:
        tensor = only(tensors)
        return self.exchange.send(tensor, for_moving(tensor.dtype)[0], destination, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        tensor = only(tensors)
        return self.exchange.receive(tensor, for_moving(tensor.dtype)[0], source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self.recv(tensors, self.size(), tag)
