"""Embeddings whose gradients have some rows and otherwise zeros: which parameters they are, and sums of the touched rows alone.

`nn.Embedding(sparse=True)` makes such gradients by itself. Without `sparse`, autograd makes the whole table, full of
zeros, in each backward, of which a lane may touch few rows. So while a lane is open, the embeddings of large tables get a
backward that makes only the rows, with the same bits. Where something else may see the gradient, it makes the whole table
like torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from samebits.errors import UsageError
from samebits.machine.torch_private import global_forward_hooks, saved_tensors_hooks, transforms
from samebits.protocol.layout.placement import Placement
from samebits.rank.strategy.replica.arena import Segment
from samebits.rank.transport.contract import Transport


@dataclass(frozen=True)
class Rows:
    """A table of zeros but for some rows."""

    index: Tensor
    """int64, ascending, each row once."""
    values: Tensor
    """The rows, in the order of `index`."""

    @classmethod
    def none(cls, like: Tensor, dtype: torch.dtype) -> Rows:
        """No row of a table like `like`."""
        return cls(
            torch.empty(0, dtype=torch.int64, device="cpu"),
            torch.empty((0, *like.shape[1:]), dtype=dtype, device="cpu"),
        )

    @classmethod
    def summed(cls, index: Tensor, values: Tensor) -> Rows:
        """Add up `values`, row by row in their order onto zeros, at the rows `index` (int64, 1-D), which may repeat rows."""
        rows, places = torch.unique(index, return_inverse=True)
        return cls(rows, values.new_zeros((rows.numel(), *values.shape[1:])).index_add_(0, places, values))

    @classmethod
    def of(cls, gradient: Tensor) -> Rows:
        """Those of a sparse COO tensor with one sparse dimension."""
        gradient = gradient.detach()
        # `coalesce` sorts unstably, so it adds repeated rows in another order each time.
        return cls.summed(gradient._indices()[0], gradient._values())  # noqa: SLF001

    def spread(self, union: Tensor) -> Tensor:
        """The rows `union` of the table; they are ascending, and none of ours is missing."""
        values = self.values.new_zeros((union.numel(), *self.values.shape[1:]))
        return values.index_copy_(0, torch.searchsorted(union, self.index), self.values)

    def plus(self, other: Rows) -> Rows:
        union = torch.unique(torch.cat([self.index, other.index]))
        return Rows(union, self.spread(union).add_(other.spread(union)))

    def times(self, weight: float) -> Rows:
        """The table times `weight`; zeros if that is 0, whatever is in it."""
        return Rows(self.index, self.values * weight if weight else torch.zeros_like(self.values))

    def to(self, dtype: torch.dtype) -> Rows:
        return Rows(self.index, self.values.to(dtype))

    def fill(self, table: Tensor) -> None:
        table.zero_()
        table.index_copy_(0, self.index, self.values.to(table.dtype))

    def sparse(self, like: Tensor) -> Tensor:
        """The table as a coalesced sparse tensor of the shape and dtype of `like`."""
        return torch.sparse_coo_tensor(
            self.index[None],
            self.values.to(like.dtype),
            like.shape,
            is_coalesced=True,
            check_invariants=False,
            device=like.device,
        )


def is_rows(gradient: Tensor | None) -> bool:
    """Whether a gradient is sparse, with its rows."""
    return gradient is not None and gradient.layout is torch.sparse_coo and gradient.sparse_dim() == 1


def sum_of(before: Tensor, gradient: Tensor) -> Tensor:
    """Add a pass's gradient to what there was before, in place: in `before`, unless only `gradient` is dense."""
    if before.layout is not torch.strided and gradient.layout is torch.strided:
        return gradient.add_(before)
    return before.add_(gradient)


def around(start: int, end: int, holes: Iterable[Segment]) -> list[tuple[int, int]]:
    """What of elements [start, end) is in none of `holes`, which are ascending and do not overlap."""
    found = []
    for hole in holes:
        if hole.offset >= end:
            break
        if hole.offset > start:
            found.append((start, hole.offset))
        start = max(start, hole.offset + hole.size)
    return [*found, (start, end)] if start < end else found


def agreed(reports: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Which tables are exchanged by rows, and how many of each any rank has at most; the same on every rank.

    Args:
        reports: for each rank, the tables of which it has nothing but rows, unused ones too, with their number.
    """
    first, *others = reports
    return {
        number: max(one[number] for one in reports)
        for number in sorted(first)
        if all(number in other for other in others)
    }


def added_over_ranks(
    parts: Mapping[int, Sequence[Rows]],
    counts: Mapping[int, int],
    parameters: Sequence[nn.Parameter],
    ranks: tuple[Transport, Placement],
    dtypes: tuple[Mapping[torch.dtype, torch.dtype], float],
) -> dict[int, Rows]:
    """Add up tables over the ranks, only the rows that some rank has. Collective: call it on every rank.

    Args:
        parts: for each table, this rank's part of each of its subtrees.
        counts: see `agreed`; of those with 0, nothing travels.
        parameters: by number.
        ranks: the transport, and the lanes on its ranks.
        dtypes: in which dtype a table is added up, if not in its own; what every sum is multiplied by.
    """
    (transport, placement), (wide, scale) = ranks, dtypes
    numbers = [number for number, count in counts.items() if count]
    likes = ((number, parameters[number]) for number, count in counts.items() if not count)
    found = {number: Rows.none(like, wide.get(like.dtype, like.dtype)) for number, like in likes}
    if not numbers:
        return found
    found_unions = _unions([parts[number] for number in numbers], [counts[number] for number in numbers], transport)
    unions = dict(zip(numbers, found_unions, strict=True))
    kinds: dict[torch.dtype, list[int]] = {}
    for number in numbers:
        kinds.setdefault(wide.get(parameters[number].dtype, parameters[number].dtype), []).append(number)
    subtrees = range(len(placement.subtrees(transport.rank)))
    for dtype, members in kinds.items():
        shapes = [(unions[number].numel(), *parameters[number].shape[1:]) for number in members]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        partials = [
            torch.cat([parts[number][place].spread(unions[number]).view(-1) for number in members])
            for place in subtrees
        ]
        out = torch.empty(sum(sizes), dtype=dtype, device="cpu")
        pending = transport.begin_all_reduce(partials, placement, out)
        pending.advance(scale)
        pending.finish()
        for number, shape, values in zip(members, shapes, torch.split(out, sizes), strict=True):
            found[number] = Rows(unions[number], values.view(shape))
    return found


def _unions(parts: Sequence[Sequence[Rows]], counts: Sequence[int], transport: Transport) -> list[Tensor]:
    """For each table, the rows that any rank has; `counts` are the most of any rank. Collective."""
    mine = torch.full((sum(counts),), -1, dtype=torch.int64, device="cpu")
    for here, some in zip(torch.split(mine, list(counts)), parts, strict=True):
        rows = torch.unique(torch.cat([one.index for one in some])) if some else here[:0]
        here[: rows.numel()] = rows
    # A rank with fewer rows fills up with -1, which sorts first and is cut off below: all send equally many numbers.
    everyone = torch.stack(transport.all_gather(mine))
    unions = [torch.unique(rows) for rows in torch.split(everyone, list(counts), dim=1)]
    return [rows[1:] if rows[0] < 0 else rows for rows in unions]


TABLE_BYTES = 1024 * 1024
"""From this size on, an embedding without `sparse` is worth it."""

SAME_SUMS = (torch.float32, torch.float64)
"""Dtypes in which rows are added with the bits of torch's kernel; that rounds halves in other places."""

MOST_OF = 2
"""A backward that looks up more than a table's rows divided by this makes the whole table."""


def takes_sparse(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether an optimizer updates only the rows of a sparse gradient, and has no state of its own that would be sparse.

    All others get dense gradients, which for torch's are the same bits or the only ones that they take.
    """
    if isinstance(optimizer, SparseAdam):
        return True
    odd = ("weight_decay", "momentum", "fused", "differentiable")
    return type(optimizer) in (SGD, Adagrad) and not any(group.get(option) for option in odd)


@dataclass(frozen=True)
class EmbeddingTables:
    """The tables among the trainable parameters."""

    sparse: frozenset[int] = frozenset()
    """The numbers of those whose modules say `sparse=True`."""
    embeddings: tuple[tuple[nn.Embedding, int], ...] = field(default=(), compare=False)
    """Modules that can be made to report their rows, and the numbers of their weights."""

    @property
    def numbers(self) -> frozenset[int]:
        return self.sparse | {number for _, number in self.embeddings}

    @classmethod
    def of(
        cls, models: Sequence[tuple[str, nn.Module]], trainable: Sequence[nn.Parameter], *, looks: bool
    ) -> EmbeddingTables:
        """Find them; on the CPU only.

        Args:
            models: with their labels.
            trainable: their trainable parameters.
            looks: whether embeddings without `sparse` count.
        """
        numbers = {id(one): number for number, one in enumerate(trainable) if one.device.type == "cpu" and one.dim()}
        sparse: set[int] = set()
        embeddings: list[tuple[nn.Embedding, int]] = []
        for module in (module for _, model in models for module in model.modules()):
            if getattr(module, "sparse", False) is True:
                sparse |= {numbers[id(one)] for one in module.parameters(recurse=False) if id(one) in numbers}
            elif looks and _can_report(module) and id(module.weight) in numbers:
                embeddings.append((module, numbers[id(module.weight)]))
        # Beside torch's own sparse gradients, rows would be added in another order than whole tables.
        return cls(frozenset(sparse), tuple(one for one in embeddings if one[1] not in sparse))

    def kept_sparse(self, trainable: Sequence[nn.Parameter], optimizers: Sequence[Optimizer]) -> frozenset[int]:
        """Those whose `p.grad` is sparse after a pass: they have an optimizer, and all that they have take it."""
        takes: dict[int, bool] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                takes_it = takes_sparse(optimizer, group)
                takes |= {id(one): takes_it and takes.get(id(one), True) for one in group["params"]}
        return frozenset(number for number in self.sparse if takes.get(id(trainable[number]), False))

    def listen(self, is_ours: Callable[[], bool]) -> Callable[[], None]:
        """Let the embeddings report their rows, while a lane is open.

        Args:
            is_ours: whether the backward that runs is the lane's.

        Returns:
            What undoes it.
        """
        reporter = _RowReporter(is_ours)
        modules = {id(module): module for module, _ in self.embeddings}.values()
        handles = [module.register_forward_hook(reporter, with_kwargs=True) for module in modules]

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo


def require_sparse(optimizer: Optimizer, trainable: Sequence[nn.Parameter], tables: EmbeddingTables) -> None:
    """Raise `UsageError` if SparseAdam updates a parameter whose gradient would be dense."""
    if not isinstance(optimizer, SparseAdam):
        return
    owned = {id(one) for group in optimizer.param_groups for one in group["params"]}
    for number, parameter in enumerate(trainable):
        if id(parameter) in owned and number not in tables.sparse:
            raise UsageError(
                f"SparseAdam needs sparse gradients, but that of a parameter of shape {tuple(parameter.shape)} on "
                f"{parameter.device} would be dense.",
                "Give it the weights of nn.Embedding(..., sparse=True) on the CPU, and Adam the others.",
            )


def refuse_sparse(optimizer: Optimizer, trainable: Sequence[nn.Parameter], tables: EmbeddingTables) -> None:
    """Raise `UsageError` where a strategy whose gradients are always dense would give an optimizer other bits.

    SGD's are the same.
    """
    is_adam = isinstance(optimizer, SparseAdam)
    if is_adam or (type(optimizer) is Adagrad and tables.kept_sparse(trainable, [optimizer])):
        raise UsageError(
            f"{type(optimizer).__name__} updates only the rows of sparse gradients, but under zero1 gradients are dense: a "
            "rank's share of a parameter may begin inside a row.",
            f"Use --strategy ddp, or {'Adam' if is_adam else 'sparse=False'}.",
        )


def _can_report(module: nn.Module) -> TypeGuard[nn.Embedding]:
    return (
        isinstance(module, nn.Embedding)
        and type(module).forward is nn.Embedding.forward
        and "forward" not in vars(module)
        and module.max_norm is None
        and not module.scale_grad_by_freq
        and type(module.weight) is nn.Parameter
        and module.weight.dtype in SAME_SUMS
        and module.weight.nbytes >= TABLE_BYTES
    )


class _RowReporter:
    """The forward hook of an embedding while a lane is open; a copy of a module, or a pickled one, gets one that does nothing.

    Args:
        is_ours: whether the backward that runs is the lane's; None: do nothing.
    """

    def __init__(self, is_ours: Callable[[], bool] | None = None) -> None:
        self._is_ours = is_ours

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes the hook of a copy."""
        return _RowReporter, ()

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> Tensor | None:
        """Return `output` with a backward of ours; None leaves it as it is."""
        if self._is_ours is None or torch.compiler.is_compiling():
            return None
        indices = args[0] if args else kwargs["input"]
        if not _is_plain(module, indices, output):
            return None
        padding = output.grad_fn._saved_padding_idx  # noqa: SLF001 - what was looked up with, whatever the module says
        # torch shows -1 without its sign.
        about = padding if padding < 1 << 63 else -1, self._is_ours
        return _LookUp.apply(module.weight, indices, output.detach(), about)  # type: ignore[no-any-return, no-untyped-call]


def _is_plain(module: nn.Module, indices: Any, output: Any) -> bool:
    """Whether `output` comes from a look-up of `indices` in the parameter itself, and has no other user yet."""
    made_by = getattr(output, "grad_fn", None)
    if type(output) is not Tensor or made_by is None or made_by.name() != "EmbeddingBackward0":
        return False
    if len(module._forward_hooks) > 1 or global_forward_hooks or transforms() is not None:  # noqa: SLF001
        return False
    if module._backward_hooks and not module._is_full_backward_hook:  # noqa: SLF001 - those look into the backward
        return False
    is_ordinary = not (made_by._saved_sparse or made_by._saved_scale_grad_by_freq)  # noqa: SLF001
    variable = getattr(made_by.next_functions[0][0], "variable", None)
    return is_ordinary and variable is module.weight and _looked_up(made_by, indices)


def _looked_up(made_by: Any, indices: Any) -> bool:
    """Whether `indices` themselves were looked up; where saved tensors are packed, to ask would unpack them."""
    return saved_tensors_hooks(True) is not None or made_by._saved_indices.is_set_to(indices)  # noqa: SLF001


class _LookUp(torch.autograd.Function):
    """The look-up of an embedding; its backward reports the rows, or makes the table as torch does."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, output: Tensor, about: tuple[Any, Any]) -> Tensor:
        """Return `output`, the rows of `weight` at `indices`, as made from `weight`."""
        ctx.save_for_backward(indices)
        ctx.weight, (ctx.padding, ctx.is_ours) = weight, about
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (indices,), (gradient,) = ctx.saved_tensors, gradients
        # [Note: when the whole table is made]
        # Somebody else may look at the gradient: a hook, a graph of this backward, a backward that is not the lane's. They
        # get what torch makes. So does a look-up of most rows, of which a list would be no smaller.
        num_rows = ctx.weight.shape[0]
        if not ctx.is_ours() or _is_seen(ctx.weight) or indices.numel() * MOST_OF > num_rows:
            whole = torch.ops.aten.embedding_dense_backward(gradient, indices, num_rows, ctx.padding, False)
            return whole, None, None, None
        index, values = indices.reshape(-1), gradient.reshape(-1, gradient.shape[-1])
        if ctx.padding >= 0:
            there = index != ctx.padding
            index, values = index[there], values[there]
        return Rows.summed(index.to(torch.int64), values).sparse(ctx.weight), None, None, None


def _is_seen(weight: Tensor) -> bool:
    """Whether something else sees this gradient: a hook of the script, or a graph of this backward."""
    return torch.is_grad_enabled() or bool(weight._backward_hooks) or len(weight._post_accumulate_grad_hooks or ()) > 1  # noqa: SLF001
