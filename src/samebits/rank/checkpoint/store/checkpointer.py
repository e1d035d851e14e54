"""States that a process of its own writes: what every rank calls. Rank 0 has the memory and the process.

Runs in: each rank; a thread named samebits-pages gets the memory for the first copy.

take: every rank that can reach the memory of rank 0 (`common_memory`) copies its share (`shares`); what only ranks of
other nodes hold travels to rank 0. hand_over: once all ranks have said that they are done. A rank that dies before costs
this state, and no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.machine.clocks import growing_time
from samebits.notices import say
from samebits.protocol.state_files.folder import StateFolder, not_written
from samebits.rank.checkpoint.format.sources import Found, stream
from samebits.rank.checkpoint.format.state import State
from samebits.rank.checkpoint.format.tensor_file import order_of
from samebits.rank.checkpoint.parts.whole import facts_of
from samebits.rank.checkpoint.store.memory import (
    CommonMemory,
    FileImage,
    Mapped,
    Piece,
    StateMemory,
    share_out,
)
from samebits.rank.checkpoint.store.save import write_now
from samebits.rank.checkpoint.store.store import Store
from samebits.rank.checkpoint.store.writer_handle import Image, Order, Writer
from samebits.rank.position.run_state import RunState

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
UNREACHABLE = "the memory for a copy of it cannot be reached any more."


@dataclass(frozen=True)
class _Ready:
    """A state in memory: the descriptor, and where its order lies."""

    memory: int
    at: int
    size: int


class AsyncCheckpointer:
    """The states of one run, one at a time.

    Args:
        keep: how many stay.
        url: where copies of them go; empty: nowhere.
        others: how many older ones stay besides.
        refusal: says why a state of so many bytes is not to be copied, if it is not; a run goes without such a state, and
            without one for which there is no memory. If there is no such function, it waits until the state is written.
    """

    def __init__(
        self, keep: int, url: str = "", *, others: int = 0, refusal: Callable[[int], str] | None = None
    ) -> None:
        self._keep, self._url, self._others, self._goes_without = keep, url, others, refusal is not None
        self._memory = CommonMemory(refusal or _never)
        self._writer: Writer | None = None
        self._target = Path()
        self._pages: Pages | None = None
        """Those of the first copy, while `prepare` gets them."""
        self._ready: _Ready | str | None = None
        """The state that was copied, or why it cannot be written; None where there is nothing to do."""
        self._has_reported_late = self._has_reported_memory = False

    def offer(self) -> Any:
        """What `take` is to know of this rank on all others."""
        # [Note: what a rank offers whose pages are missing]
        # Nothing, so all ranks ask for the memory anew. A copy into pages that are not there could end the rank by SIGBUS.
        pages, self._pages = self._pages, None
        return self._memory.offer() if pages is None or pages.are_there() else None

    def prepare(
        self, run: RunState, _folder: StateFolder, _contents: State, found: Found, record: Sequence[Any]
    ) -> str:
        """Get the memory for the first state while training continues: a `Write` that writes nothing."""
        transport = run.components.transport
        images, end = lay_out(found)
        common = self._memory.find(transport, record, end, has_pages=False)
        if not isinstance(common, str) and common.mapped is not None:
            mine = share_out(found, common.reach).get(transport.rank, [])
            pages = [(images[one.file].places[one.name] + one.offset, one.size) for one in mine]
            if transport.rank == 0:
                pages += [
                    (images[file].places[name], one.described.size_bytes)
                    for file, tensors in found.items()
                    for name, one in tensors.items()
                    if not (one.is_everywhere or one.rank in common.reach)
                ]
            self._pages = Pages(common.mapped, pages)
        return ""

    def take(self, run: RunState, folder: StateFolder, contents: State, found: Found, record: Sequence[Any]) -> str:
        """Copy the state, which `hand_over` then lets be written: a `Write`. No other state may be under way.

        Returns why that is impossible; whether the state could be written is known later. Where there is no memory for the
        copy, it is written now, or not at all if the run goes without.
        """
        transport = run.components.transport
        self._ready, self._target = None, folder.target
        # [Note: why files lie in memory as they will be]
        # The process needs neither torch nor knowledge of tensors, and its order is two numbers: handing over never waits.
        images, end = lay_out(found)
        common = self._memory.find(transport, record, end)
        if isinstance(common, str):
            return self._go_without(common, run, folder, contents, found)
        if common.own is not None:
            self._ready = self._put_order(run, contents, images, end, common.own)
        mapped, problem = common.mapped, ""
        if mapped is not None:
            pieces = share_out(found, common.reach).get(transport.rank, [])
            copy_pieces(mapped, images, contents, pieces, run.config.threads)
        elif transport.rank in common.reach:
            problem = UNREACHABLE
        # [Note: why a rank with a problem stays]
        # What only ranks of other nodes hold is broadcast by all.
        for file, image in images.items():
            far = {
                name: one for name, one in found[file].items() if not (one.is_everywhere or one.rank in common.reach)
            }
            names = order_of({name: one.described for name, one in far.items()})
            for name, tensor in zip(names, stream(far, contents.files[file].tensors, transport), strict=True):
                if tensor is not None and mapped is not None:
                    mapped.put(image.places[name], tensor)
        return problem

    def _put_order(
        self, run: RunState, contents: State, images: Mapping[str, FileImage], end: int, memory: StateMemory
    ) -> _Ready | str:
        """Write what is no tensor into the memory; why it is not possible."""
        order = Order(
            str(self._target),
            self._keep,
            [Image(file, image.at, image.size, sorted(image.places), image.judged) for file, image in images.items()],
            contents.written(),
            facts_of(run),
            growing_time(run.components.step_timer.step),
            not self._goes_without,
            self._url,
            self._others,
        ).encode()
        try:
            for at, data in ((end, order), *((image.at, image.header) for image in images.values())):
                memory.write(at, data)
        except OSError as error:
            return f"there is no memory for a copy of it ({error.strerror})."
        return _Ready(memory.descriptor, end, len(order))

    def _go_without(self, why: str, run: RunState, folder: StateFolder, contents: State, found: Found) -> str:
        """Write the state now, if it is needed."""
        is_main = run.components.transport.rank == 0
        if self._goes_without:
            return why if is_main else ""
        if is_main and not self._has_reported_memory:
            self._has_reported_memory = True
            say(NO_MEMORY.format(why))
        if (problem := write_now(run, folder, contents, found)) or not is_main:
            return problem
        if problem := Store(folder.target.parent, self._keep, self._url, others=self._others).added(folder.target):
            say(f"{problem} The run continues.")
        return ""

    def hand_over(self) -> str:
        """Let the state be written that `take` has copied: call it once every rank is done with that.

        Does nothing on other ranks than 0. Returns why the state cannot be written, as an error's text.
        """
        ready, self._ready = self._ready, None
        if ready is None:
            return ""
        if isinstance(ready, str):
            return str(not_written(self._target, ready))
        try:
            self._send(ready)
        except OSError as error:
            self._drop_writer()
            why = f"the process that writes it could not be started ({error.strerror})."
            return str(not_written(self._target, why))
        return ""

    def _send(self, ready: _Ready) -> None:
        if self._writer is not None:
            try:
                self._writer.hand_over(ready.at, ready.size)
            except OSError:
                # [Note: a writer that ended between two states]
                # Another one takes its place, with the memory that is filled already: no state is lost.
                self._drop_writer()
            else:
                return
        self._writer = Writer(ready.memory)
        self._writer.hand_over(ready.at, ready.size)

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
        # [Note: why the step waits for the state before]
        # A second copy would take as much memory again, and a disk that is too slow stays too slow.
        problem = self._answer(patience_s)
        if problem is None:
            if text != LATE or not self._has_reported_late:
                self._has_reported_late = self._has_reported_late or text == LATE
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
        if self._pages is not None:
            self._pages.are_there()
            self._pages = None
        self._memory.close()

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


class Pages:
    """Pages that a thread gets from the kernel, where the copy would wait for them: eight times as long as it takes itself."""

    def __init__(self, mapped: Mapped, spans: Sequence[tuple[int, int]]) -> None:
        self._mapped, self._spans, self._are_there = mapped, spans, False
        self._thread = threading.Thread(target=self._work, name="samebits-pages", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with suppress(OSError):
            self._mapped.populate(self._spans)
            self._are_there = True

    def are_there(self) -> bool:
        """Whether the kernel had all of them. Waits for the thread."""
        self._thread.join()
        return self._are_there


def _never(_: int) -> str:
    """No refusal."""
    return ""


def lay_out(found: Found) -> tuple[dict[str, FileImage], int]:
    """Where each file lies, in the order in which all ranks stream them, and where the last one ends."""
    images: dict[str, FileImage] = {}
    end = 0
    for file in sorted(found):
        judged = {name for name, source in found[file].items() if source.is_judged}
        images[file] = FileImage(end, {name: source.described for name, source in found[file].items()}, judged)
        end = images[file].end
    return images, end


def copy_pieces(
    mapped: Mapped, images: Mapping[str, FileImage], contents: State, pieces: Sequence[Piece], threads: int
) -> None:
    """Copy one rank's pieces to where they lie in their files, `threads` at a time."""
    left = iter(pieces)

    def work(_: int = 0) -> None:
        # [Note: why pieces are drawn from one iterator]
        # A thread that is held up takes fewer pieces, and no thread waits for another: 90 ms for 120 MB beside other work,
        # where `copy_` with its own threads took 270.
        for piece in left:
            tensor = contents.files[piece.file].tensors[piece.name]
            mapped.put(images[piece.file].places[piece.name] + piece.offset, piece.of(tensor))

    if threads == 1:
        work()
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, range(threads)):
            pass
