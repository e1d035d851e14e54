"""`hogwild`: parameters and buffers in memory that all ranks share, updated without locks.

A rank trains on its own lanes of every step as if it were alone: its own gradient, its own optimizer state, no exchange
inside an epoch. It differs from a run of one rank only in where the parameters are. What that means for samples,
learning rates, losses and evaluation is in docs/design/strategies.md#hogwild. It is not exact, by design.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import EnvironmentFailure, UsageError
from samebits.protocol.layout.cut import StepCut
from samebits.protocol.layout.placement import Placement, place
from samebits.rank.strategy.agreement import check_same_models, refuse_unsupported
from samebits.rank.strategy.contract import OpenLane, Pass, PassResult
from samebits.rank.strategy.delegating import DelegatingStrategy
from samebits.rank.strategy.other_users import named_once, refuse_other_users
from samebits.rank.strategy.pass_loss import PassLoss
from samebits.rank.strategy.precision import Precision
from samebits.rank.strategy.replica.buffers import BufferBank
from samebits.rank.strategy.replica.memory import ParameterMemory
from samebits.rank.strategy.replica.replica import Replica
from samebits.rank.transport.alone import AloneTransport
from samebits.rank.transport.contract import Transport


class Pages(ParameterMemory):
    """Tensors that every rank of the transport maps. All ranks must be on one node, under one user."""

    is_ours = False

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Make a tensor of zeros over memory that all ranks share. Collective: call it on every rank.

        `size` elements, 1-D, on the CPU; pass the same arguments on every rank. Freed when no rank holds it any more.

        Raises:
            EnvironmentFailure: on every rank, when the system refuses the memory or a rank cannot reach it.
        """
        if not size:
            return torch.zeros(0, dtype=dtype, device=device)
        # A file without a name, which other ranks reach through rank 0's descriptor: nothing is left behind if all are killed.
        file, offer = -1, {"name": "", "process": os.getpid(), "file": -1, "problem": ""}
        if self._transport.rank == 0:
            offer["name"] = f"samebits-{secrets.token_hex(8)}"
            try:
                file = offer["file"] = os.memfd_create(str(offer["name"]))
                os.posix_fallocate(file, 0, size * dtype.itemsize)
            except OSError as error:
                offer["problem"] = (
                    f"The ranks need {size * dtype.itemsize:,} bytes of shared memory, but the system refused: "
                    f"{error.strerror}. Free memory or raise the limit, or use --strategy ddp."
                )
        try:
            made = self._transport.all_gather_object(offer, "shared memory")[0]
            if made["problem"]:
                raise EnvironmentFailure(made["problem"])
            process = made["process"] if self._transport.rank else "self"
            mapped, problem = _map(Path(f"/proc/{process}/fd/{made['file']}"), made["name"], size, dtype)
            problems = self._transport.all_gather_object(problem, "shared memory mapped")
        finally:
            if file >= 0:
                os.close(file)
        for rank, text in enumerate(problems):
            if text:
                raise EnvironmentFailure(
                    f"rank {rank} cannot reach the memory of rank 0 ({text}). The ranks of hogwild must run on one node, "
                    f"in one container, as one user. Elsewhere use --strategy ddp."
                )
        return mapped


def _map(path: Path, name: str, size: int, dtype: torch.dtype) -> tuple[Tensor, str]:
    """Map the file at `path` as a tensor, or say why not. Its name shows that it is not another node's file."""
    try:
        # The number of a descriptor is another file on another node, or in another container.
        if not str(path.readlink()).startswith(f"/memfd:{name} "):
            return torch.empty(0, device="cpu"), f"{path} is another file"
        return torch.from_file(str(path), shared=True, size=size, dtype=dtype), ""
    except (OSError, RuntimeError) as error:
        return torch.empty(0, device="cpu"), str(error)


HAS_TO_MOVE = (
    "Take views after run.prepare and leave out share_memory(): hogwild shares the parameters itself, in other memory. "
    "Tensors from NumPy or a mapped file need `p.data = p.data.clone()`. Or use --strategy ddp."
)


class Hogwild(DelegatingStrategy):
    """Several CPU ranks of one node. The inner strategy is that of a run whose only lanes are this rank's.

    Args:
        transport: the ranks; used in `adopt` and before an evaluation.
    """

    takes_closures = False

    def __init__(self, transport: Transport, placement: Placement, precision: Precision) -> None:
        lanes = placement.lanes(transport.rank)
        self._pages = Pages(transport)
        self._replica = Replica("hogwild", AloneTransport(), place(len(lanes), 1), precision, memory=self._pages)
        super().__init__(self._replica)
        self.placement = placement
        self._transport, self._mine = transport, slice(lanes.start, lanes.stop)
        self._buffers = BufferBank((), {})
        self._loss = math.nan
        """The loss of this rank's last pass with samples."""

    def adopt(self, models: Sequence[nn.Module]) -> None:
        named = [(f"{type(model).__name__}{number or ''}", model) for number, model in enumerate(models)]
        refuse_unsupported(named)
        refuse_other_users(named_once(named), HAS_TO_MOVE)
        _refuse_what_cannot_be_shared(named)
        check_same_models(named, self._transport)
        self._replica.adopt(models)
        self._buffers = BufferBank(named, {}, allocate=self._pages.allocate)
        # No rank may train before all have written the starting values.
        self._transport.barrier("shared model")

    def begin_pass(self, cut: StepCut, where: str) -> Pass:
        if self._buffers.has_changed():
            raise UsageError(
                "A buffer of the model was added, removed or resized after run.prepare. Under hogwild, buffers are "
                "in memory that all ranks share.",
                "Give them their full size before run.prepare, or use --strategy ddp.",
            )
        mine = StepCut(cut.step, cut.samples[self._mine], cut.weights[self._mine])
        return _HogwildPass(self._replica.begin_pass(mine, where), self._buffers, self._mine.start, self._loss_of(mine))

    def _loss_of(self, mine: StepCut) -> Callable[[float | None], float | None]:
        """Make the function that gives a pass's loss: a rank without samples in a short step gives its last one."""

        def loss_of(loss: float | None) -> float | None:
            if loss is not None:
                self._loss = loss
            return loss if any(mine.samples) else self._loss

        return loss_of

    def checksums(self, *, only_moving: bool = False) -> list[int]:  # noqa: ARG002 - none at all
        """Return nothing: there is one copy of the model, so there is nothing to compare."""
        return []

    def tensors(self, *, only_moving: bool = False) -> list[tuple[str, Tensor]]:  # noqa: ARG002 - none at all
        return []

    def keep_buffers(self) -> None:
        """Begin an evaluation once every rank has reached it, so no rank evaluates a model that still changes."""
        self._transport.barrier("evaluate")
        self._buffers.remember()

    def restore_buffers(self) -> list[str]:
        return [self._buffers.entries[index].name for index in self._buffers.after_lane().entries]


class _HogwildPass(Pass):
    """A pass over this rank's lanes; its results are this rank's own.

    Args:
        inner: counts the lanes from 0.
        buffers: those that all ranks share.
        first: this rank's first lane.
        loss_of: see `Hogwild._loss_of`.
    """

    def __init__(
        self, inner: Pass, buffers: BufferBank, first: int, loss_of: Callable[[float | None], float | None]
    ) -> None:
        self._inner, self._buffers, self._first, self._loss_of = inner, buffers, first, loss_of

    def begin_lane(self, lane: int) -> OpenLane:
        return _HogwildLane(self._inner.begin_lane(lane - self._first), self._buffers)

    def end(self, rows: Mapping[str, Any], seen: int) -> PassResult:
        result = self._inner.end(rows, seen)
        return PassResult(PassLoss.known(self._loss_of(result.loss)), result.rows)

    def abandon(self) -> None:
        self._inner.abandon()


class _HogwildLane(OpenLane):
    """A lane after which all ranks see the buffers that it changed."""

    def __init__(self, inner: OpenLane, buffers: BufferBank) -> None:
        self._inner, self._buffers = inner, buffers

    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:
        self._inner.backward(loss, weight, retain_graph=retain_graph)

    def end(self) -> None:
        self._inner.end()
        self._buffers.take_in()


def _refuse_what_cannot_be_shared(models: Sequence[tuple[str, nn.Module]]) -> None:
    for label, model in models:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.device.type != "cpu":
                raise UsageError(
                    f"{label}.{name} is on {tensor.device}, but hogwild shares CPU memory.",
                    "Start with --device cpu, or use --strategy ddp.",
                )
