"""all_to_all of a process group: every rank has something else for every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from lockstep.rank.process_group.arguments import check_list, check_same_dtype, options
from lockstep.rank.process_group.encoding import for_moving
from lockstep.rank.process_group.errors import CollectiveMisused
from lockstep.rank.process_group.membership import Membership
from lockstep.rank.process_group.operands import Buffers
from lockstep.rank.process_group.watched import seen

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
