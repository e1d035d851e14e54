"""`hogwild`: parameters and buffers in memory that all ranks share, updated without locks.

A rank trains on its own lanes of every step as if it were alone: its own gradient, its own optimizer state, no exchange
inside an epoch. It differs from a run of one rank only in where the parameters lie. What that means for samples,
learning rates, losses and evaluation is in docs/design/0008-hogwild.md. Not exact, by nature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from lockstep.errors import UsageError
from lockstep.layout.placement import Placement, place
from lockstep.strategy.agreement import check_same_models, refuse_unsupported
from lockstep.strategy.around import Around
from lockstep.strategy.contract import PassResult, StepCut
from lockstep.strategy.hogwild.pages import SharedMemory
from lockstep.strategy.other_users import named_once, refuse_other_users
from lockstep.strategy.replica.buffers import BufferBank
from lockstep.strategy.replica.replica import Replica
from lockstep.transport.alone import AloneTransport
from lockstep.transport.contract import Transport

HAS_TO_MOVE = (
    "Under hogwild lockstep shares the parameters itself, in other memory. Take views after run.prepare and leave out "
    "share_memory(); what came from NumPy or a mapped file needs `p.data = p.data.clone()`. Or use --strategy ddp."
)


class Hogwild(Around):
    """Several ranks of one node, on the CPU. The inner strategy is that of a run whose only lanes are this rank's.

    Args:
        transport: the ranks; used in `adopt`, and before an evaluation.
        placement: lanes on ranks.
    """

    takes_closures = False

    def __init__(self, transport: Transport, placement: Placement) -> None:
        lanes = placement.lanes(transport.rank)
        memory = SharedMemory(transport)
        super().__init__(Replica("hogwild", AloneTransport(), place(len(lanes), 1), shared=memory.zeros))
        self.placement = placement
        self._transport, self._memory, self._mine = transport, memory, slice(lanes.start, lanes.stop)
        self._buffers: BufferBank | None = None
        self._loss = math.nan
        """Of this rank's last pass with samples."""
        self._has_samples = False

    def adopt(self, models: Sequence[nn.Module]) -> None:
        named = [(f"{type(model).__name__}{number or ''}", model) for number, model in enumerate(models)]
        refuse_unsupported(named)
        refuse_other_users(named_once(named), HAS_TO_MOVE)
        _refuse_what_cannot_be_shared(named)
        check_same_models(named, self._transport)
        self._inner.adopt(models)
        self._buffers = BufferBank(named, {}, allocate=self._memory.zeros)
        self._transport.barrier("shared model")  # nobody trains before everybody has written the starting values

    def begin_pass(self, cut: StepCut, where: str) -> None:
        buffers = self._present_buffers()
        if buffers.has_changed():
            raise UsageError(
                "A buffer of the model came, went or changed its shape after run.prepare. Under hogwild buffers lie in "
                "memory that all ranks share. Give them their full size before run.prepare, or use --strategy ddp."
            )
        self._has_samples = any(cut.samples[self._mine])
        self._inner.begin_pass(StepCut(cut.step, cut.samples[self._mine], cut.weights[self._mine]), where)

    def begin_lane(self, lane: int) -> None:
        self._inner.begin_lane(lane - self._mine.start)

    def end_lane(self) -> None:
        self._inner.end_lane()
        self._present_buffers().take_in()

    def end_pass(self, notes: Mapping[int, Any]) -> PassResult:
        """This rank's own gradient, loss and notes. Without samples in a short step the loss is the last one."""
        first = self._mine.start
        result = self._inner.end_pass({lane - first: note for lane, note in notes.items()})
        if result.loss is not None:
            self._loss = result.loss
        return PassResult(
            loss=result.loss if self._has_samples else self._loss,
            notes={lane + first: note for lane, note in result.notes.items()},
        )

    def checksums(self) -> list[int]:
        """Nothing: there is one copy of the model, so there is nothing to compare."""
        return []

    def name_difference(self) -> str:
        return ""

    def keep_buffers(self) -> None:
        """An evaluation begins when every rank has come to it, so that all ranks evaluate a model that rests."""
        self._transport.barrier("evaluate")
        self._present_buffers().remember()

    def restore_buffers(self) -> list[str]:
        buffers = self._present_buffers()
        return [buffers.entries[index].name for index in buffers.after_lane().entries]

    def _present_buffers(self) -> BufferBank:
        assert self._buffers is not None
        return self._buffers


def _refuse_what_cannot_be_shared(models: Sequence[tuple[str, nn.Module]]) -> None:
    for label, model in models:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.device.type != "cpu":
                raise UsageError(
                    f"{label}.{name} is on {tensor.device}, but hogwild shares CPU memory. Start with --device cpu, or "
                    f"use --strategy ddp."
                )
