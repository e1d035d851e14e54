"""States that a process of its own writes: what every rank calls; rank 0 has the memory and the process.

Tensors that other ranks hold still travel to rank 0 inside the step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from lockstep.checkpoint.completion import not_written
from lockstep.checkpoint.contents import Contents
from lockstep.checkpoint.folder import StateFolder
from lockstep.checkpoint.inventory import Source, stream
from lockstep.checkpoint.remote_ring import copied
from lockstep.notices import say
from lockstep.run.run_state import RunState
from lockstep.run.saving.aside.memory import FileImage, StateMemory
from lockstep.run.saving.aside.order import Image, Order
from lockstep.run.saving.aside.writer import Writer
from lockstep.run.saving.ring import Ring
from lockstep.run.saving.state import facts_of, write_now
from lockstep.transport.contract import Transport

Found = Mapping[str, Mapping[str, Source]]
"""By file and tensor, where it comes from."""

PATIENCE_S = 1.0
"""How long a save waits for the one before without a word."""
END_PATIENCE_S = 2.0
"""How long the end of a run does."""
LATE = (
    "The next state is due while the last one is still being written, so training waits for that. Save less often, or "
    "to a faster place."
)
AT_END = "The last state is still being written. The run ends when that is done."
NO_MEMORY = "There is no memory for a copy of the state ({}), so training stands still while states are written."


class Aside:
    """The states of one run, one at a time.

    Args:
        keep: how many stay.
        url: the ring at a URL that gets a copy of each; empty: none does.
        is_needed: whether the run waits for a state that cannot be written aside, and says so; otherwise it goes without.
    """

    def __init__(self, keep: int, url: str = "", *, is_needed: bool = True) -> None:
        self._keep, self._url, self._is_needed = keep, url, is_needed
        self._memory: StateMemory | None = None
        self._writer: Writer | None = None
        self._target = Path()
        self._has_said_late = self._has_said_memory = False

    def take(self, run: RunState, folder: StateFolder, contents: Contents, found: Found) -> str:
        """Copy the state and let it be written: a `Write` of `save_state`. No other state may be under way.

        Collective: call it on every rank. Returns on rank 0 why that is impossible; whether the state could be written is
        known later. Where there is no memory for the copy, it is written now, or not at all if it is not needed.
        """
        if run.machinery.transport.rank != 0:
            _hand_out(run, contents, found)
            return ""
        images, end = lay_out(found)
        order = Order(
            str(folder.target),
            self._keep,
            [Image(file, image.at, image.size, sorted(image.order)) for file, image in images.items()],
            contents.written(),
            facts_of(run),
            time.time(),
            self._url,
        ).encode()
        try:
            memory = self._memory = self._memory or StateMemory()
            memory.reserve(end + len(order))
        except OSError as error:
            if not self._is_needed:
                _hand_out(run, contents, found)
                return f"there is no memory for a copy of it ({error.strerror})."
            if not self._has_said_memory:
                self._has_said_memory = True
                say(NO_MEMORY.format(error.strerror))
            return self._write_now(run, folder, contents, found)
        memory.put(end, order)
        for file, image in images.items():
            _copy(memory, image, found[file], contents.files[file].tensors, run.machinery.transport)
        self._target = folder.target
        try:
            self._hand_over(memory, end, len(order))
        except OSError as error:
            self._drop_writer()
            return f"the process that writes it could not be started ({error.strerror})."
        return ""

    def _hand_over(self, memory: StateMemory, at: int, size: int) -> None:
        if self._writer is not None:
            try:
                self._writer.hand_over(at, size)
            except OSError:  # it has ended since it wrote the last state: another one takes its place
                self._drop_writer()
            else:
                return
        self._writer = Writer(memory.descriptor)
        self._writer.hand_over(at, size)

    def _write_now(self, run: RunState, folder: StateFolder, contents: Contents, found: Found) -> str:
        if problem := write_now(run, folder, contents, found):
            return problem
        Ring(folder.target.parent, self._keep).prune()
        if problem := copied(folder.target, self._url, self._keep):
            say(f"{problem} The run goes on.")
        return ""

    def look(self) -> str:
        """Why the state that was handed over could not be written, once that is known; empty otherwise. Does not wait."""
        return self._answer(0.0) or ""

    @property
    def is_busy(self) -> bool:
        """Whether a state is being written, as far as is known."""
        return self._writer is not None and self._writer.is_busy

    @property
    def cpu_s(self) -> float:
        """The processor time that writing the last state took."""
        return self._writer.cpu_s if self._writer is not None else 0.0

    def settle(self, patience_s: float = PATIENCE_S, text: str = LATE) -> str:
        """Wait until the state is on the disk; return why it could not be written. `text` is said after `patience_s`."""
        problem = self._answer(patience_s)
        if problem is None:
            if text != LATE or not self._has_said_late:
                self._has_said_late = self._has_said_late or text == LATE
                say(text)
            problem = self._answer(None)
        return problem or ""

    def close(self) -> str:
        """Wait until the state is on the disk, and end the process; return why it could not be written."""
        problem = self.settle(END_PATIENCE_S, AT_END)
        self.drop()
        return problem

    def drop(self) -> None:
        """End the process, whatever it is doing."""
        self._drop_writer()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _answer(self, timeout_s: float | None) -> str | None:
        """What has become of the state under way, as an error's text; None if that is not known by then."""
        if self._writer is None or not self._writer.is_busy:
            return ""
        problem = self._writer.answer(timeout_s)
        if not problem:
            return problem
        if not self._writer.is_gone:
            return problem
        self._drop_writer()
        return str(not_written(self._target, problem))

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _hand_out(run: RunState, contents: Contents, found: Found) -> None:
    """Take part in the streams of tensors without keeping them."""
    for file in sorted(found):
        for _ in stream(found[file], contents.files[file].tensors, run.machinery.transport):
            pass


def lay_out(found: Found) -> tuple[dict[str, FileImage], int]:
    """Where each file lies, in the order in which all ranks stream them, and where the last one ends."""
    images: dict[str, FileImage] = {}
    end = 0
    for file in sorted(found):
        images[file] = FileImage(end, {name: source.described for name, source in found[file].items()})
        end = images[file].end
    return images, end


def _copy(
    memory: StateMemory,
    image: FileImage,
    found: Mapping[str, Source],
    tensors: Mapping[str, Tensor],
    transport: Transport,
) -> None:
    """Copy one file's tensors to where they lie in its image. Collective: the other ranks stream them."""
    memory.put(image.at, image.header)
    for name, tensor in zip(image.order, stream(found, tensors, transport), strict=True):
        if tensor is not None:
            memory.put_tensor(image.places[name], tensor, found[name].described)
