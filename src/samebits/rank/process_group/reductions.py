"""The operations of a process group that add up: all_reduce, reduce, reduce_scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from samebits.rank.process_group import exchange as kinds
from samebits.rank.process_group.arguments import (
    OP_CODES,
    SUM,
    CollectiveMisused,
    Terms,
    all_of,
    check_count,
    check_list,
    check_same_dtype,
    only,
    only_list,
    options,
    terms_of,
)
from samebits.rank.process_group.exchange import TROUBLES
from samebits.rank.process_group.membership import Membership
from samebits.rank.process_group.operands import (
    Buffers,
    check_device,
    copy_of,
    overlap,
    share_memory,
    unspoilt,
    with_numbers,
)
from samebits.rank.process_group.watched import seen
from samebits.rank.process_group.work import DONE, Handle, complete_inner_future


def sparse_sum(group: Any, tensor: Tensor) -> Any:
    """Replace a sparse COO tensor on every rank by the sum of all ranks' tensors, added in the order of the ranks.

    Waits; the work that it returns is finished.

    Raises:
        CollectiveMisused: on every rank, when the shapes differ; here, when the tensor is not on the CPU.
    """
    check_device(tensor)
    mine = tensor.detach().coalesce()
    indices, values = mine.indices(), mine.values()
    about = torch.tensor([values.shape[0], tensor.sparse_dim(), *tensor.shape], device="cpu")
    abouts = [torch.empty_like(about) for _ in range(group.size())]
    group.all_gather_list(abouts, about).wait()
    if any(not torch.equal(other[1:], about[1:]) for other in abouts):
        shapes = ", ".join(f"{tuple(other[2:].tolist())} on rank {rank}" for rank, other in enumerate(abouts))
        raise CollectiveMisused(
            f"The sum of sparse tensors needs one shape, but it is {shapes}.",
            "Give the tensors the same shape on every rank.",
        )
    counts = [int(other[0]) for other in abouts]
    all_indices = [indices.new_empty((count, indices.shape[0])) for count in counts]
    all_values = [values.new_empty((count, *values.shape[1:])) for count in counts]
    group.all_gather_list(all_indices, indices.t().contiguous()).wait()
    group.all_gather_list(all_values, values).wait()
    total = torch.sparse_coo_tensor(
        torch.cat(all_indices).t(), torch.cat(all_values), tensor.shape, device="cpu", check_invariants=False
    ).coalesce()
    with torch.no_grad():
        # In place, because a detached view of a sparse tensor has indices of its own.
        tensor.copy_(total)
    return group.exchange.follow([], Buffers(), [tensor])


_ALL_REDUCE, _REDUCE, _REDUCE_SCATTER = c10d.AllreduceOptions(), c10d.ReduceOptions(), c10d.ReduceScatterOptions()
_PAIRWISE = (
    torch.add, torch.add, torch.minimum, torch.maximum, torch.mul,
    torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor,
)  # fmt: skip
"""By the code of the reduce operation."""


class Reductions(Membership):
    """SUM, AVG, MIN, MAX and PRODUCT of real numbers, SUM and AVG of complex ones, BAND, BOR and BXOR of whole ones.

    As in NCCL, AVG of whole numbers is the sum, divided and rounded towards zero, and PREMUL_SUM multiplies each rank's
    tensor by that rank's factor first, in the dtype of the tensor. float8 is added up in float32 and rounded once.
    """

    def allreduce(  # type: ignore[override]  # torch's overloads in one
        self, tensors: Any, opts: Any = _ALL_REDUCE, timeout: Any = None, op: Any = None
    ) -> Any:
        """Reduce in place, on every rank. The short way is for one plain tensor whose caller waits.

        Several tensors are as many terms of this rank; each of them gets the result.
        """
        exchange = self.exchange
        try:
            if (
                timeout is op is None
                and not exchange.is_impatient
                and exchange.reads.sum(exchange.native, tensors, opts)
            ):
                exchange.num_begun += 1
                return DONE
        except TROUBLES as error:
            exchange.num_begun += 1
            exchange.fail(error)
        given = {name: value for name, value in (("timeout", timeout), ("op", op)) if value is not None}
        return self._all_reduce(tensors, opts, **given)

    @seen(1, "all_reduce", "allreduce")
    def _all_reduce(self, tensors: Any, opts: Any = _ALL_REDUCE, timeout: Any = None, *, op: Any = None) -> Any:
        opts = options(c10d.AllreduceOptions, opts, op=op, timeout=timeout)
        first, *others = all_of(tensors)
        if first.is_sparse and OP_CODES.get(hash(opts.reduceOp)) == SUM and not others:
            work = sparse_sum(self, first)
        elif others:
            work = self._reduce_several([first, *others], opts)
        else:
            work = self._reduce(kinds.ALL_REDUCE, first, opts, -1)
        if isinstance(work, Handle):
            complete_inner_future(work)
        return work

    def _reduce(self, kind: int, tensor: Tensor, opts: Any, root: int, *, apart: bool = False) -> Any:
        """Reduce in place; with `apart` in a copy until the end, so that other operations may use the same memory."""
        terms = terms_of(opts.reduceOp, tensor.dtype)
        buffers = Buffers()
        if root not in {-1, self.rank()}:
            address = buffers.reads(terms.of(tensor))
        elif apart or not terms.are_tensors:
            address = buffers.replaces(terms.of(copy_of(with_numbers(tensor))), tensor)
        else:
            address = buffers.writes(tensor, also_reads=True)
        count = tensor.numel() * terms.width
        return self.exchange.call(
            kind, terms.dtype, terms.op, root, count, [address], [address], tensor.shape, buffers, [tensor], opts
        )

    def _reduce_several(self, tensors: list[Tensor], opts: Any) -> Any:
        terms = terms_of(opts.reduceOp, tensors[0].dtype)
        combine = _PAIRWISE[terms.op]
        total = terms.of(copy_of(with_numbers(tensors[0])))
        for tensor in tensors[1:]:
            combine(total, terms.of(with_numbers(tensor)), out=total)
        buffers = Buffers()
        address = buffers.replaces(total, *tensors)
        count = total.numel() * terms.width
        return self.exchange.call(
            kinds.ALL_REDUCE,
            terms.dtype,
            terms.op,
            -1,
            count,
            [address],
            [address],
            total.shape,
            buffers,
            tensors,
            opts,
        )

    @seen(1, "all_reduce_coalesced")
    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = _ALL_REDUCE) -> Any:
        """Reduce each of them as `allreduce` does, all at once; none reads what another has written."""
        tensors = [with_numbers(tensor) for tensor in tensors]
        apart = share_memory(*([tensor] for tensor in tensors))
        one = c10d.AllreduceOptions()
        one.reduceOp = opts.reduceOp
        works = [self._reduce(kinds.ALL_REDUCE, tensor, one, -1, apart=apart) for tensor in tensors]
        return self.together(works, opts.asyncOp)

    @seen(1, "reduce")
    def reduce(
        self, tensors: Any, opts: Any = _REDUCE, op: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> Any:
        """Reduce in place on the root; the others keep their numbers."""
        opts = options(c10d.ReduceOptions, opts, op=op, root=root, timeout=timeout)
        return self._reduce(kinds.REDUCE, only(tensors), opts, opts.rootRank)

    @seen(2, "reduce_scatter")
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = _REDUCE_SCATTER, timeout: Any = None, *, op: Any = None
    ) -> Any:
        """`outputs[0]` becomes the sum of all ranks' `inputs[0][r]` on rank r; the parts may have different sizes."""
        opts = options(c10d.ReduceScatterOptions, opts, op=op, timeout=timeout)
        output, source = only(outputs), only_list(inputs)
        check_list(self.size(), "reduce_scatter", source, output)
        check_count("reduce_scatter", "output", output.numel(), source[self.rank()].numel())
        terms = terms_of(opts.reduceOp, output.dtype)
        if len({tensor.numel() for tensor in source}) > 1:
            return self.together(self._reduce_parts(output, source, terms), opts.asyncOp)
        buffers = Buffers()
        sources = [buffers.reads(terms.of(tensor)) for tensor in source]
        target = [_result(buffers, output, terms)]
        count = output.numel() * terms.width
        return self.exchange.call(
            kinds.REDUCE_SCATTER,
            terms.dtype,
            terms.op,
            -1,
            count,
            sources,
            target,
            output.shape,
            buffers,
            [output],
            opts,
        )

    def _reduce_parts(self, output: Tensor, source: list[Tensor], terms: Terms) -> list[Any]:
        """One reduction for each rank; the root's own part goes to `output`, and nothing of `source` is written."""
        works = []
        if any(overlap(tensor, output) for root, tensor in enumerate(source) if root != self.rank()):
            # One of them would be read after `output` is written.
            source = [tensor.clone() for tensor in source]
        all_buffers = [Buffers() for _ in source]
        addresses = [[buffers.reads(terms.of(tensor))] for buffers, tensor in zip(all_buffers, source, strict=True)]
        for root, (tensor, buffers, address) in enumerate(zip(source, all_buffers, addresses, strict=True)):
            target = [_result(buffers, output, terms)] if root == self.rank() else address
            count = tensor.numel() * terms.width
            works.append(
                self.exchange.call(
                    kinds.REDUCE,
                    terms.dtype,
                    terms.op,
                    root,
                    count,
                    address,
                    target,
                    tensor.shape,
                    buffers,
                    [output],
                    _REDUCE,
                )
            )
        return works

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """`output` becomes this rank's part of the sum of all ranks' `input`; it may be a part of `input`."""
        opts = opts or _REDUCE_SCATTER
        if self.exchange.moves(kinds.REDUCE_SCATTER, output, input, opts):
            return DONE
        return self._reduce_scatter_seen(output, input, opts)

    @seen(2, "reduce_scatter_single", "reduce_scatter_single")
    def _reduce_scatter_seen(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        return self._reduce_scatter_single(output, input, opts)

    def _reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        check_same_dtype("reduce_scatter", output, input)
        check_count("reduce_scatter", "input", input.numel(), output.numel() * self.size())
        terms = terms_of(opts.reduceOp, input.dtype)
        buffers = Buffers()
        source, target = [buffers.reads(terms.of(input))], [_result(buffers, output, terms)]
        count = output.numel() * terms.width
        return self.exchange.call(
            kinds.REDUCE_SCATTER, terms.dtype, terms.op, -1, count, source, target, input.shape, buffers, [output], opts
        )

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]  # torch names its parameters otherwise

    @seen(2, "reduce_scatter_coalesced")
    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        opts = opts or _REDUCE_SCATTER
        inputs = unspoilt([[output] for output in outputs], inputs)
        one = c10d.ReduceScatterOptions()
        one.reduceOp = opts.reduceOp
        works = [self._reduce_scatter_single(*pair, one) for pair in zip(outputs, inputs, strict=True)]
        return self.together(works, opts.asyncOp)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _result(buffers: Buffers, output: Tensor, terms: Terms) -> int:
    """The address that the result for `output` is written to."""
    if terms.wide is None:
        return buffers.writes(output)
    return buffers.replaces(torch.empty(output.shape, dtype=terms.wide, device="cpu"), output)
