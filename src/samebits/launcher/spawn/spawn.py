"""`samebits.spawn`: call a function on several ranks from a program or a notebook cell.

The call of torch.multiprocessing.spawn. What differs: ranks are forked from a nursery of their own (CUDA in the caller
does no harm), they find everything that `samebits run` sets (address and port included), functions of a notebook cell
travel, rank 0's output appears where the caller prints, and all ranks end when the first one fails.

Runs in: the caller's thread; with `join=False` a thread of its own, named `samebits-spawn`.
"""

from __future__ import annotations

import atexit
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TextIO, overload

from samebits.errors import RankFailed, RankMisused, UsageError
from samebits.launcher.folder import reserve_run_folder
from samebits.launcher.launcher import launch
from samebits.launcher.nursery.kept import KeptNursery, main_file, torch_variables_for
from samebits.launcher.request import Computation, EntryPoint, FunctionCall, LaunchRequest, Outcome, Output, Placement
from samebits.launcher.script_source import file_calls_init, names_portable, text_calls_init, text_names_portable
from samebits.launcher.signals import CaughtSignals
from samebits.launcher.sizing import Machine, Size, Wish, size
from samebits.launcher.spawn.parcel import Parcel, sources_without_file
from samebits.launcher.terminal.terminal import ERR, OUT, Terminal
from samebits.machine.cores import usable_cores
from samebits.machine.gpus import gpu_names, usable_gpus
from samebits.machine.no_gpu import NO_GPU, why_none
from samebits.machine.processes import open_file_limit
from samebits.notices import say
from samebits.protocol.backends import check_backend
from samebits.protocol.environment import check_spawn
from samebits.protocol.journal.failure import FailureKind
from samebits.protocol.late_settings import how_to_share, ranks_per_gpu
from samebits.protocol.run_folder import runs_folder


@dataclass(frozen=True)
class Ending:
    outcome: Outcome | None
    error: BaseException | None

    @property
    def interrupted(self) -> bool:
        """Whether the user ended the ranks, and so knows."""
        return self.outcome is not None and bool(self.outcome.interrupted_by)

    def tell(self) -> None:
        """Raise what the caller should see, if anything."""
        if self.error is not None:
            raise self.error
        outcome = self.outcome
        if outcome is None or outcome.exit_code == 0:
            return
        if outcome.interrupted_by == signal.SIGINT:
            raise KeyboardInterrupt
        if outcome.interrupted_by:
            # The signal was meant for this process, which only passed it on to the ranks.
            signal.raise_signal(outcome.interrupted_by)
            return
        raise _failure(outcome)


def _failure(outcome: Outcome) -> RankFailed:
    failure = outcome.failure
    text = outcome.block.removeprefix("FAILED").strip()
    rank = outcome.rank if outcome.rank is not None else -1
    if failure is not None and failure.kind is FailureKind.USAGE:
        problem, fix = failure.mistake
        return RankMisused(f"rank {rank}: {problem}", fix, rank, failure.traceback, outcome.exit_code)
    return RankFailed(text, rank, failure.traceback if failure is not None else "", outcome.exit_code)


Device = Literal["auto", "cpu", "cuda"]
_kept = KeptNursery()
atexit.register(_kept.close)


@overload
def spawn(
    fn: Callable[..., object],
    args: tuple[Any, ...] = ...,
    nprocs: int = ...,
    join: Literal[True] = ...,
    *,
    device: Device = ...,
    backend: str | None = ...,
    quiet: bool = ...,
) -> None: ...


@overload
def spawn(
    fn: Callable[..., object],
    args: tuple[Any, ...] = ...,
    nprocs: int = ...,
    *,
    join: Literal[False],
    device: Device = ...,
    backend: str | None = ...,
    quiet: bool = ...,
) -> SpawnContext: ...


@overload
def spawn(
    fn: Callable[..., object],
    args: tuple[Any, ...] = ...,
    nprocs: int = ...,
    join: bool = ...,
    *,
    device: Device = ...,
    backend: str | None = ...,
    quiet: bool = ...,
) -> SpawnContext | None: ...


def spawn(
    fn: Callable[..., object],
    args: tuple[Any, ...] = (),
    nprocs: int = 2,
    join: bool = True,
    *,
    device: Device = "auto",
    backend: str | None = None,
    quiet: bool = False,
) -> SpawnContext | None:
    """Call `fn(rank, *args)` in `nprocs` new processes, the ranks of a run.

    Inside `fn`, `samebits.init()` and `torch.distributed.init_process_group` find rank, world size, address and port;
    giving them yourself (`rank=rank, world_size=nprocs`) works too.

    Args:
        fn: the function; one of `__main__` or of a notebook cell is sent by value with the names that it uses.
        args: its other arguments. Tensors among them are shared with the caller, models only after `share_memory()`.
        nprocs: the number of ranks.
        join: wait until all have ended. False: return at once; call `join()` on the result.
        device: "cuda" pins rank r to cuda:r; "auto" does so where there is a GPU for each rank.
        backend: of torch.distributed ("samebits", "gloo", "nccl", "mpi") instead of the one that `fn` asks for, as
            `samebits run --backend`; None leaves it to `fn`.
        quiet: say nothing but what the ranks print.

    Returns:
        None with `join`, else a context to join.

    Raises:
        RankFailed: the first failure of a rank, once, with that rank's traceback; the other ranks are stopped. It is
            also a UsageError when the rank raised one.
        UsageError: when something cannot be sent, or this process is a rank itself.
        KeyboardInterrupt: after Ctrl-C; all ranks have ended.
    """
    _check(fn, args, nprocs)
    sized = _size(nprocs, device, quiet)
    if backend is not None:
        check_backend(backend, sized[0].device, find_spec("samebits._native") is not None)
    parcel = Parcel(fn, args)
    try:
        request = _request(fn, sized, quiet, parcel, backend or "")
        context = SpawnContext(request, parcel)
    except BaseException:
        parcel.close()
        raise
    if not join:
        context.start()
        return context
    context.run()
    context.join()
    return None


class SpawnContext:
    """The ranks of a `spawn(..., join=False)`."""

    def __init__(self, request: LaunchRequest, parcel: Parcel) -> None:
        self._request = request
        self._parcel = parcel
        self._signals = CaughtSignals()
        self._ending: Ending | None = None
        self._thread: threading.Thread | None = None
        self._told = False

    def start(self) -> None:
        """Run in the background. A caller that ends well waits for the ranks; one that fails takes them along."""
        atexit.register(self._say_failure)
        self._thread = threading.Thread(target=self.run, name="samebits-spawn")
        self._thread.start()
        threading.Thread(target=self._end_with_a_failed_caller, daemon=True).start()

    def _end_with_a_failed_caller(self) -> None:
        threading.main_thread().join()
        if getattr(sys, "last_value", None) is not None:
            self._signals.send(signal.SIGINT)

    def _say_failure(self) -> None:
        """Say, at the caller's end, a failure that it never joined."""
        if self._told or self._ending is None or self._ending.interrupted:
            return
        try:
            self._ending.tell()
        except Exception as error:  # noqa: BLE001 - whatever `join` would have raised
            print(f"samebits.spawn: {error}", file=sys.stderr)

    def run(self) -> None:
        """Run the ranks to their end, in this thread."""
        terminal = _terminal()
        outcome, error = None, None
        try:
            with (
                self._parcel,
                _kept.lend(self._request.placement.threads, torch_variables_for(self._request)) as nursery,
            ):
                outcome = launch(self._request, terminal, nursery, self._signals)
        except BaseException as raised:  # noqa: BLE001 - raised again by `join`, in the thread that calls it
            error = raised
        self._ending = Ending(outcome, error)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the ranks.

        Args:
            timeout: seconds; None waits forever.

        Returns:
            True when all have ended well, False when some still run after `timeout`.

        Raises:
            RankFailed: once, for the first failure; later calls return True.
            KeyboardInterrupt: after Ctrl-C; all ranks have ended.
        """
        if self._thread is not None:
            self._wait(timeout)
            if self._thread.is_alive():
                return False
        if self._ending is not None and not self._told:
            self._told = True
            atexit.unregister(self._say_failure)
            self._ending.tell()
        return True

    def stop(self) -> None:
        """End all ranks, and wait until they have ended."""
        self._signals.send(signal.SIGTERM)
        self._told = True
        if self._thread is not None:
            self._thread.join()

    def _wait(self, timeout: float | None) -> None:
        assert self._thread is not None
        try:
            self._thread.join(timeout)
        except KeyboardInterrupt:
            self._signals.send(signal.SIGINT)
            self._told = True
            self._thread.join()
            raise


def _check(fn: object, args: object, nprocs: object) -> None:
    if not callable(fn):
        raise UsageError(
            f"`fn` must be a function that takes the rank first, but is {fn!r}.",
            "Write `def fn(rank, *args)`, and pass fn itself.",
        )
    if not isinstance(args, tuple):
        raise UsageError(
            f"`args` must be a tuple, but is of type {type(args).__name__}.", "Write args=(x,) for one argument."
        )
    try:
        inspect.signature(fn).bind(0, *args)
    except TypeError as error:
        raise UsageError(
            f"`fn` is called with the rank and then `args`, which do not fit: {error}.",
            "Let its first parameter be the rank, and give `args` a value for each of the others.",
        ) from None
    except ValueError:
        # A builtin without a signature.
        pass
    if not isinstance(nprocs, int) or isinstance(nprocs, bool) or nprocs < 1:
        raise UsageError(f"`nprocs` must be a whole number of at least 1, but is {nprocs!r}.", "Pass nprocs=2.")
    check_spawn(os.environ)


def _request(
    fn: Callable[..., object], sized: tuple[Size, str], quiet: bool, parcel: Parcel, backend: str
) -> LaunchRequest:
    name = str(getattr(fn, "__name__", None) or type(fn).__name__)
    decided, why = sized
    base = runs_folder(os.environ)
    folder = reserve_run_folder(base, None, name, datetime.now().astimezone())
    placement = Placement(
        ranks=decided.ranks,
        threads=decided.threads,
        cores=decided.cores,
        device=decided.device,
        device_given=decided.device_given,
        devices=gpu_names(os.environ, decided.ranks) if decided.device == "cuda" else (),
        shared_gpus=decided.shared_gpus,
        why=why,
    )
    return LaunchRequest(
        EntryPoint(call=FunctionCall(parcel.path, name, *_init_in_source(fn))),
        placement,
        Output.of(folder.absolute(), quiet=quiet),
        Computation(backend=backend),
    )


def _init_in_source(fn: Callable[..., object]) -> tuple[bool, bool]:
    """Whether the file of `fn` calls `samebits.init`, and with numerics="portable"; of a function in no file, whether any cell does."""
    code = getattr(inspect.unwrap(getattr(fn, "func", fn)), "__code__", None)
    file = Path(code.co_filename if code is not None else main_file() or "")
    if file.is_file():
        return file_calls_init(file, Path(sys.path[0])), names_portable(file, Path(sys.path[0]))
    text = "".join(line for lines in sources_without_file().values() for line in lines)
    return text_calls_init(text), text_names_portable(text)


def _size(nprocs: int, device: str, quiet: bool) -> tuple[Size, str]:
    """Decide as for `samebits run -n nprocs`; but with fewer GPUs than ranks, "auto" takes the CPU, with a note."""
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f'`device` must be "auto", "cpu" or "cuda", but is {device!r}.', "Leave it out to let samebits choose."
        )
    gpus = usable_gpus(os.environ) if device != "cpu" else 0
    no_gpu = why_none(os.environ).in_python if not gpus and device != "cpu" else NO_GPU
    if device == "cuda" and no_gpu.is_news:
        raise UsageError(no_gpu.problem, no_gpu.fix)
    if no_gpu.note and not quiet:
        say(no_gpu.note)
    share = ranks_per_gpu(os.environ)
    if device == "cuda" and nprocs > gpus * share:
        raise UsageError(
            f'{nprocs} ranks with device="cuda" need one GPU each, but {gpus} that torch can use '
            f"{'is' if gpus == 1 else 'are'} here.",
            f'Use {f"nprocs={gpus}, or " if gpus else ""}device="cpu".'
            + (f" {how_to_share(nprocs, gpus)}." if gpus else ""),
        )
    omp_threads, files = os.environ.get("OMP_NUM_THREADS"), open_file_limit()
    machine = Machine(usable_cores(), gpus, omp_threads, files, ranks_per_gpu=share)
    too_few = device == "auto" and 0 < gpus * share < nprocs
    decided = size(Wish(str(nprocs), "cpu" if too_few else device), machine)
    decided = replace(decided, device_given=device != "auto")
    return decided, f"{decided.why}; {gpus} GPU for {nprocs} ranks" if too_few else decided.why


def _terminal() -> Terminal:
    """The place where the caller prints: its descriptors, or what a notebook has put in their place."""
    return Terminal(os.environ, _sink(sys.stdout, OUT), _sink(sys.stderr, ERR))


def _sink(stream: TextIO | None, descriptor: int) -> TextIO | int:
    if stream is None:
        return descriptor
    stream.flush()
    own = stream is (sys.__stdout__ if descriptor == OUT else sys.__stderr__)
    return descriptor if own else stream
