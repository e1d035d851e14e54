"""Those operations of a process group that add up: all_reduce, reduce, reduce_scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from lockstep.transport import exchange as kinds
from lockstep.transport.arguments import check_count, check_list, check_same_dtype, only, only_list
from lockstep.transport.buffers import ONLY_ITSELF, Buffers, overlap
from lockstep.transport.encoding import SUM, for_reducing, op_code
from lockstep.transport.exchange import DONE, TROUBLES
from lockstep.transport.membership import Membership
from lockstep.transport.shared_memory import DTYPES
from lockstep.transport.sparse_sum import sparse_sum

_ALL_REDUCE, _REDUCE, _REDUCE_SCATTER = c10d.AllreduceOptions(), c10d.ReduceOptions(), c10d.ReduceScatterOptions()
_STRIDED = torch.strided


class Reductions(Membership):
    """SUM, AVG, MIN, MAX and PRODUCT of real numbers, SUM and AVG of complex ones."""

    def allreduce(self, tensors: Any, opts: Any = _ALL_REDUCE, timeout: Any = None) -> Any:  # noqa: ARG002
        """In place, on every rank. The short way is for one plain tensor without going on meanwhile."""
        tensor = only(tensors)
        is_async, op = (opts.asyncOp, opts.reduceOp) if isinstance(opts, c10d.AllreduceOptions) else (True, opts)
        code = op_code(op)
        dtype = DTYPES.get(tensor.dtype)
        exchange = self.exchange
        if (
            dtype is not None
            and type(tensor).__torch_dispatch__ is ONLY_ITSELF
            and not (is_async or exchange.is_impatient)
            and tensor.is_cpu
            and tensor.layout is _STRIDED
            and tensor.is_contiguous()
            and not tensor.is_neg()
        ):
            exchange.num_begun += 1
            try:
                exchange.native.all_reduce(tensor.data_ptr(), tensor.numel(), dtype, code)
            except TROUBLES as error:
                exchange.fail(error)
            return DONE
        return self._reduce(kinds.ALL_REDUCE, tensor, code, -1, is_async)

    def _reduce(self, kind: int, tensor: Tensor, op: int, root: int, is_async: bool) -> Any:
        if tensor.is_sparse and kind == kinds.ALL_REDUCE and op == SUM:
            return sparse_sum(self, tensor)
        dtype, width = for_reducing(tensor.dtype, op)
        buffers = Buffers()
        gets_result = root in {-1, self.rank()}
        address = buffers.writes(tensor, also_reads=True) if gets_result else buffers.reads(tensor)
        count = tensor.numel() * width
        return self.exchange.call(
            kind, dtype, op, root, count, [address], [address], buffers, [tensor], is_async=is_async
        )

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = _ALL_REDUCE) -> Any:
        """Each of them as `allreduce`, all under way at once."""
        code = op_code(opts.reduceOp)
        works = [self._reduce(kinds.ALL_REDUCE, tensor, code, -1, is_async=True) for tensor in tensors]
        return self.together(works, opts.asyncOp)

    def reduce(self, tensors: Any, opts: Any = _REDUCE, op: Any = dist.ReduceOp.SUM, timeout: Any = None) -> Any:  # noqa: ARG002
        """In place, on the root; the others keep their numbers."""
        if isinstance(opts, int):
            return self._reduce(kinds.REDUCE, only(tensors), op_code(op), opts, is_async=True)
        return self._reduce(kinds.REDUCE, only(tensors), op_code(opts.reduceOp), opts.rootRank, opts.asyncOp)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = _REDUCE_SCATTER, timeout: Any = None) -> Any:  # noqa: ARG002
        """`outputs[0]` becomes the sum of all ranks' `inputs[0][r]` on rank r; the parts may have different sizes."""
        output, source = only(outputs), only_list(inputs)
        is_async, op = (opts.asyncOp, opts.reduceOp) if isinstance(opts, c10d.ReduceScatterOptions) else (True, opts)
        code = op_code(op)
        check_list(self.size(), "reduce_scatter", source, output)
        check_count("reduce_scatter", "output", output.numel(), source[self.rank()].numel())
        dtype, width = for_reducing(output.dtype, code)
        if len({tensor.numel() for tensor in source}) > 1:
            return self.together(self._reduce_parts(output, source, dtype, width, code), is_async)
        buffers = Buffers()
        sources, target = buffers.reads_all(source), [buffers.writes(output)]
        count = output.numel() * width
        return self.exchange.call(
            kinds.REDUCE_SCATTER, dtype, code, -1, count, sources, target, buffers, [output], is_async=is_async
        )

    def _reduce_parts(self, output: Tensor, source: list[Tensor], dtype: int, width: int, op: int) -> list[Any]:
        """One reduction for each rank; the root's own part goes to `output`, and nothing of `source` is written."""
        works = []
        if any(overlap(tensor, output) for root, tensor in enumerate(source) if root != self.rank()):
            source = [tensor.clone() for tensor in source]  # one of them is read after `output` is written
        kept = [Buffers() for _ in source]
        addresses = [[buffers.reads(tensor)] for buffers, tensor in zip(kept, source, strict=True)]
        for root, (tensor, buffers, address) in enumerate(zip(source, kept, addresses, strict=True)):
            target = [buffers.writes(output)] if root == self.rank() else address
            count = tensor.numel() * width
            works.append(
                self.exchange.call(
                    kinds.REDUCE, dtype, op, root, count, address, target, buffers, [output], is_async=True
                )
            )
        return works

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = _REDUCE_SCATTER) -> Any:
        """`output` becomes this rank's part of the sum of all ranks' `input`; it may be a part of `input`."""
        code = op_code(opts.reduceOp)
        check_same_dtype("reduce_scatter", output, input)
        check_count("reduce_scatter", "input", input.numel(), output.numel() * self.size())
        dtype, width = for_reducing(input.dtype, code)
        buffers = Buffers()
        source, target = [buffers.reads(input)], [buffers.writes(output)]
        count = output.numel() * width
        return self.exchange.call(
            kinds.REDUCE_SCATTER, dtype, code, -1, count, source, target, buffers, [output], is_async=opts.asyncOp
        )

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]  # the names of its arguments differ

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = _REDUCE_SCATTER
    ) -> Any:
        one = c10d.ReduceScatterOptions()
        one.reduceOp, one.asyncOp = opts.reduceOp, True
        works = [self.reduce_scatter_single(*pair, one) for pair in zip(outputs, inputs, strict=True)]
        return self.together(works, opts.asyncOp)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]
