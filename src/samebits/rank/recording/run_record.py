"""`samebits run --record`: what a run did, step by step, in a form that somebody else can check.

Each rank makes digests of what its lanes were given, which travel in the frame of the pass; rank 0 writes a line for each step.
A step without a backward has no line: the next one that has says from which step on there was none.

Steps that are computed again, after a loss or a resume, must be what they were: they are compared with the lines that are there,
and written only where those end. The first that is not is named, and the record ends there.

Runs in: the main thread of each rank; rank 0 writes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.notices import say
from samebits.protocol.record.difference import step_difference
from samebits.protocol.record.lines import (
    END,
    START,
    STEP,
    few,
    is_number,
    is_step,
    plain_number,
    unlinked,
)
from samebits.protocol.record.reading import FILE
from samebits.protocol.run_folder import STATES, RunFolder, add_line
from samebits.rank.data.device_copies import tensors_in
from samebits.rank.data.loader import LanePart, PreparedLoader
from samebits.rank.data.order import EpochPlan
from samebits.rank.data.uses import update_digest, whole_numbers
from samebits.rank.position.observers import Observer
from samebits.rank.position.run_state import RunState
from samebits.rank.recording.conditions import FILES, conditions_of, files_of_script
from samebits.rank.recording.record_file import RecordFile
from samebits.rank.strategy.contract import PassResult
from samebits.rank.strategy.pass_loss import PassLoss

IDS, DATA = 12, 16
"""Hexadecimal digits of a lane's digests: of its samples' indices, and of what is in its batch."""
DIGITS = 24
"""Of all lanes in a line: each has its share of them, so that a lane can be named."""
MOST_BYTES = 4096
"""Of a tensor: a digest finds the place where samples differ, it proves nothing, and must cost next to nothing."""
MOST_LATE = 100
"""Lines that wait for a loss of the GPU."""
OF_START = "script", "arguments", "parent", "skipped"
"""What the command knows and the line of a start says, as it is."""


class RunRecord(Observer):
    """Writes the record.

    Args:
        folder: of this start.
        rank: of this process.
        told: what the command knows: script, arguments and commit.
    """

    def __init__(self, folder: RunFolder, rank: int, told: Mapping[str, Any]) -> None:
        self._folder, self._rank, self._told = folder, rank, dict(told)
        self._passes: list[PassLoss] = []
        self._late: deque[tuple[dict[str, Any], list[PassLoss]]] = deque()
        self._file: RecordFile | None = None
        self._num_modules = 0
        self._first = 0
        """The step that this start began with."""
        self._is_over = rank != 0
        """Whether nothing is written here, or no more."""
        self._run: RunState

    def attach(self, run: RunState) -> None:
        """Look at this run."""
        self._run = run
        run.loop_state.rates.taken = []
        run.loop_state.recorded = {STEP: 0}

    def fetched(self, part: LanePart, batch: Any) -> None:
        digests, step = f"{_of_ids(part.indices)}{_of_data(batch)}", self._run.components.step_timer.step
        self._run.loop_state.open_pass.fetched.append((step, part.lane, digests))
        if self._told.get("ids"):
            add_line(
                self._folder.samples(self._rank), {"step": step, "lane": part.lane, "ids": list(map(str, part.indices))}
            )

    def begin_epoch(self, loader: PreparedLoader, plan: EpochPlan | None) -> None:  # noqa: ARG002 - an observer's signature
        if self._file is not None and not self._is_over and len(sys.modules) != self._num_modules:
            self._note_late_files()

    def begin_step(self, step: int, _num_samples: int, _is_first: bool) -> None:
        self._first = self._first or step

    def end_pass(self, _step: int, _number: int, result: PassResult) -> None:
        self._passes.append(result.pass_loss)

    def end_step(self) -> None:
        self._close_step()

    def left_loop(self) -> None:
        self._close_step()

    def end_run(self) -> None:
        self._write_late(waits=True)

    def has_bits(self, digest: str) -> None:
        if self._file is not None and not self._is_over and digest:
            # Steps without a backward have no line.
            step = (self._run.loop_state.recorded or {}).get(STEP, 0)
            self._keep(lambda file: file.write(unlinked({END: step, "bits": f"sha256:{digest}"})))

    def _close_step(self) -> None:
        """A step is over: what there is to say of it, the same on every rank; its losses may come later."""
        passes, self._passes = self._passes, []
        if not passes:
            return
        loop_state, timer, scaler = self._run.loop_state, self._run.components.step_timer, self._run.components.scaler
        fetched, loop_state.open_pass.all_fetched = loop_state.open_pass.all_fetched, []
        taken, loop_state.rates.taken = loop_state.rates.taken or [], []
        own = [(int(lane), text) for step, lane, text in fetched if step == timer.step]
        body = step_body(timer.step, timer.epoch, own, self._behind() + 1)
        body["lr"] = few(list(map(plain_number, taken)))
        if scaler is not None:
            body["scale"] = [scaler.value, scaler.skipped_in_a_row]
        self._late.append((body, passes))
        self._write_late(waits=False)

    def _behind(self) -> int:
        """The last step that has a line; where no start of this run has made one, the one behind which it began."""
        before = self._late[-1][0] if self._late else self._run.loop_state.recorded
        number = before.get(STEP) if isinstance(before, Mapping) else None
        step = self._run.components.step_timer.step
        return int(number) if number is not None and is_number(number) and number < step else min(self._first, step) - 1

    def _write_late(self, *, waits: bool) -> None:
        late = self._late
        while late and (waits or len(late) > MOST_LATE or all(one.is_there() for one in late[0][1])):
            body, passes = late.popleft()
            body["loss"] = few([plain_number(one.mean) for one in passes])
            if not self._is_over:
                self._keep(lambda file, body=body: self._add(file, body), first=body[STEP])  # type: ignore[misc]
            self._run.loop_state.recorded = body

    def _add(self, file: RecordFile, body: Mapping[str, Any]) -> None:
        if (other := file.add_step(body)) is not None:
            self._is_over = True
            found = step_difference(*other)
            what = f": {found.text}" if found is not None else ""
            say(
                f"step {body[STEP]} came again otherwise than the first time{what}. The record ends there; `samebits record show` "
                "has both."
            )

    def _keep(self, write: Callable[[RecordFile], None], first: int = 0) -> None:
        """Write; `first`: the step from which on this start does."""
        try:
            if self._file is None:
                self._file = self._begun(first)
            if not self._is_over:
                write(self._file)
        except Exception as error:  # noqa: BLE001 - whatever it is: a run does not end because of its record
            self._is_over = True
            why = (isinstance(error, OSError) and error.strerror) or error
            self._run.components.step_timer.lost(f"{FILE} cannot be written ({why}): the record ends here")

    def _begun(self, first: int) -> RecordFile:
        """The file where step `first` goes, and before it the last one of the start before, whose writer may have been lost."""
        run, before = self._run, self._run.loop_state.recorded
        earlier = before if is_step(before) and before is not None and before[STEP] < first else None
        place = Path(run.components.states.place)
        is_named = place.name == STATES and run.config.purpose.is_users
        file = RecordFile((place.parent if is_named else self._folder.path) / FILE, earlier[STEP] if earlier else first)
        self._num_modules = len(sys.modules)
        start = {
            START: first - 1,
            "ranks": run.components.transport.world_size,
            "strategy": str(run.config.mesh),
            **{key: value for key, value in self._told.items() if key in OF_START},
        }
        file.begin(start, conditions_of(run, self._conditions_told()))
        if file.has_ended:
            self._is_over = True
            say(
                f"the record of this run ended where a step came again otherwise, so nothing is added to it: {file.path}."
            )
        elif earlier is not None:
            self._add(file, earlier)
        return file

    def _conditions_told(self) -> dict[str, Any]:
        """The arguments by their hash: a published record may leave out what they are."""
        arguments = hashlib.sha256(os.fsencode("\0".join(self._told.get("arguments", [])))).hexdigest()
        return {
            **{key: value for key, value in self._told.items() if key not in (*OF_START[1:], "ids", "states")},
            "arguments": arguments,
        }

    def _note_late_files(self) -> None:
        """What was imported since the first step."""
        self._num_modules = len(sys.modules)
        self._write_late(waits=True)
        step = self._run.components.step_timer.step
        self._keep(lambda file: file.note_files(files_of_script(file.conditions[FILES]), step))


def step_body(step: int, epoch: int, fetched: list[tuple[int, str]], first: int) -> dict[str, Any]:
    """What a line says of samples: digests over all lanes in their order, and a few digits of each lane.

    Args:
        step: its number.
        epoch: the number of its epoch.
        fetched: the lanes of its batches, and their digests.
        first: the step behind the last one that has a line.
    """
    fetched = sorted(set(fetched))
    lanes: dict[int, str] = {}
    for lane, text in fetched:
        lanes[lane] = text if lane not in lanes else hashlib.sha256((lanes[lane] + text).encode()).hexdigest()
    many = max(lanes, default=0) + 1
    each = max(DIGITS // many, 1)
    digits = "-".join(_digest(lanes.get(lane, ""), min(each, 8)) for lane in range(many)) if many <= DIGITS else ""
    return {
        STEP: step,
        **({"from": first} if first != step else {}),
        "epoch": epoch,
        "ids": _digest("".join(text[:IDS] for _, text in fetched), IDS),
        "data": _digest("".join(text[IDS:] for _, text in fetched), DATA),
        "lanes": digits,
    }


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _of_ids(indices: Any) -> str:
    """Of the samples' indices; where a sampler's own cannot be shown, of how many there are."""
    numbers = whole_numbers(indices)
    if numbers is not None:
        data = numbers.astype("<i8", copy=False).tobytes()
    else:
        try:
            data = repr(list(indices)).encode(errors="backslashreplace")
        except Exception:  # noqa: BLE001 - an index of the user's whose __repr__ fails: the run goes on
            data = str(len(indices)).encode()
    return hashlib.blake2b(data, digest_size=IDS // 2).hexdigest()


def _of_data(batch: Any) -> str:
    """Of what is in a batch; where that cannot be read as bytes, of its class."""
    digest = hashlib.blake2b(digest_size=DATA // 2)
    try:
        _add_batch(digest, batch)
    except Exception:  # noqa: BLE001 - quantized or nested tensors, a mapping of the user's that fails: the run goes on
        digest = hashlib.blake2b(type(batch).__name__.encode(), digest_size=DATA // 2)
    return digest.hexdigest()


def _add_batch(digest: Any, batch: Any) -> None:
    if type(batch) in (list, tuple) and all(type(one) is Tensor for one in batch):
        # As most data sets have it, at a fifth of the time.
        for one in batch:
            _add(digest, one)
    elif any(one.device.type != "cpu" for one in tensors_in(batch) or ()):
        digest.update(repr([(one.shape, one.dtype) for one in tensors_in(batch) or ()]).encode())
    else:
        update_digest(digest, batch, MOST_BYTES)


def _add(digest: Any, tensor: Tensor) -> None:
    digest.update(_head(tensor.shape, tensor.dtype))
    # To look at what is on a GPU would be to wait for it.
    is_plain = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_complex())
    if tensor.device.type == "cpu" and is_plain and tensor.is_contiguous() and tensor.numel():
        flat = tensor.detach().view(-1).view(torch.uint8).numpy()
        every = -(-len(flat) // MOST_BYTES) | 1
        digest.update(flat[::every].tobytes() if every > 1 else flat)
    elif tensor.device.type == "cpu":
        update_digest(digest, tensor, MOST_BYTES)


@lru_cache(64)
def _head(shape: torch.Size, dtype: torch.dtype) -> bytes:
    return f"{tuple(shape)}{dtype}".encode()


_recorded: list[Path] = []
"""The folder of the run of this process that is recorded: a script may make several, one after the other."""


def make_run_record(told: Mapping[str, Any], folder: RunFolder | None, rank: int, why_not: str) -> RunRecord | None:
    """None where nobody wants one, and for later runs of this process: a record is of the first.

    Raises:
        UsageError: where a record would prove nothing.
    """
    if not told or folder is None:
        return None
    if why_not:
        raise UsageError(f"--record is for bits that come again. {why_not}", "Leave --record out.")
    if _recorded:
        if rank == 0:
            say(f"this script has another run after its first one; {FILE} is of the first.")
        return None
    _recorded.append(folder.path)
    return RunRecord(folder, rank, told)
