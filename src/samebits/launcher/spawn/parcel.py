"""A function and its arguments, packed for the ranks of `samebits.spawn`.

cloudpickle sends what was defined in `__main__` (a script, a notebook cell) by value and everything else by name, so
a script needs no `if __name__ == "__main__"` and a cell needs no file. Ranks read the parcel through /proc of the
caller, which lives as long as they do; shared memory and pipes are reached the same way, and not copied.

| in the parcel | arrives as |
|---|---|
| a tensor that is an argument, or in an argument's list, tuple or dict | shared with the caller, as in torch.multiprocessing |
| any tensor after `share_memory_()`, a model after `share_memory()` | shared |
| other tensors: a model's, what the function refers to | a copy for each rank |
| a queue or pipe of a spawn context | the same queue or pipe |
| a CUDA tensor, a file open for writing, a lock | refused in one sentence |
"""

from __future__ import annotations

import fcntl
import io
import linecache
import multiprocessing.connection
import multiprocessing.context
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, cast

import cloudpickle

from samebits.errors import UsageError
from samebits.launcher.nursery.kept import main_file
from samebits.protocol.rank_task import Header, PipeEnd, open_storage

MAX_SOURCE_BYTES = 1 << 20
"""At most this much of the sources that are in no file (notebook cells) is sent, for the ranks' tracebacks."""


class Parcel:
    """The packed call in memory: `with Parcel(fn, args) as parcel: parcel.path`. Keeps alive what it refers to."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Pack the call.

        Raises:
            UsageError: when something cannot be sent; the message names it.
        """
        self._held: object = (function, args)
        _share(args)
        call = pack((function, args), lambda: _culprit(function, args))
        header = Header(
            path=list(sys.path),
            argv=list(sys.argv) if hasattr(sys, "argv") else [],
            main_file=main_file(),
            sources=sources_without_file(),
            call=call,
        )
        self._descriptor = os.memfd_create("samebits-parcel")
        with os.fdopen(os.dup(self._descriptor), "wb") as file:
            pickle.dump(header, file)

    @property
    def path(self) -> str:
        """The path at which ranks can read it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def close(self) -> None:
        """Let go; ranks that have read it keep what they have."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def pack(call: object, culprit: Callable[[], str]) -> bytes:
    """Pack `call` as bytes.

    Args:
        call: anything.
        culprit: called when it cannot be sent: the words for what is to blame.

    Raises:
        UsageError: when something in it cannot be sent.
    """
    buffer = io.BytesIO()
    try:
        with _spawning():
            _Packer(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(call)
    except UsageError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        fix = "Make it inside the function, on each rank."
        if "fork context" in reason:
            fix = 'Make it with torch.multiprocessing.get_context("spawn").'
        raise UsageError(f"{culprit()} cannot be sent to the ranks: {reason.rstrip('.')}.", fix) from error
    return buffer.getvalue()


def _share(args: tuple[Any, ...]) -> None:
    try:
        share_arguments(args)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(
            f"The tensors of `args` cannot be moved to shared memory: {reason}.",
            "Send fewer, or raise the limit: each is an open file (ulimit -n) in /dev/shm.",
        ) from error


def share_arguments(args: object, above: frozenset[int] = frozenset()) -> None:
    """Move tensors that are arguments into shared memory, as torch.multiprocessing does; models are left alone.

    Args:
        args: the arguments, or one of their items.
        above: identities of the containers that it is inside.

    Raises:
        RuntimeError: from torch, when there is no room or too many files are open.
    """
    torch = sys.modules.get("torch")
    if torch is None or id(args) in above:
        return
    if isinstance(args, (list, tuple, dict)):
        for item in args.values() if isinstance(args, dict) else args:
            share_arguments(item, above | {id(args)})
    elif isinstance(args, torch.Tensor) and not isinstance(args, torch.nn.Parameter) and _is_plain(args, torch):
        args.share_memory_()


def _is_plain(tensor: Any, torch: Any) -> bool:
    return bool(tensor.device.type == "cpu" and tensor.layout == torch.strided)


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle, with shared memory passed by its descriptor and CUDA memory refused."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, multiprocessing.connection.Connection):
            return multiprocessing.connection.reduce_connection(obj)  # type: ignore[attr-defined]  # private to the library
        synchronize = sys.modules.get("multiprocessing.synchronize")
        if synchronize is not None and isinstance(obj, synchronize.SemLock) and obj._semlock.name is None:  # noqa: SLF001
            # Python before 3.11.5 would send the address of a lock of this process, which means nothing elsewhere.
            raise RuntimeError("it was made in a fork context")
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, (torch.UntypedStorage, torch.storage.TypedStorage)):
            return self._reduce_storage(obj, torch)
        return super().reducer_override(obj)

    def _reduce_storage(self, storage: Any, torch: Any) -> Any:
        typed = isinstance(storage, torch.storage.TypedStorage)
        plain = storage._untyped_storage if typed else storage  # noqa: SLF001 - as torch.multiprocessing.reductions does
        if plain.device.type == "cuda":
            raise UsageError(
                "A CUDA tensor cannot be sent to the ranks, each of which has a device of its own.",
                "Send it with .cpu(), and move it inside the function.",
            )
        if plain.device.type != "cpu" or not plain.is_shared():
            return NotImplemented
        descriptor, size = plain._share_fd_cpu_()
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        return open_storage, (path, size, storage.dtype if typed else None)


@contextmanager
def _spawning() -> Iterator[None]:
    """Let queues, pipes and locks of a spawn context be packed, as they are when multiprocessing starts a process."""
    before = multiprocessing.context.get_spawning_popen()
    multiprocessing.context.set_spawning_popen(cast("Any", _Handover))
    try:
        yield
    finally:
        multiprocessing.context.set_spawning_popen(cast("Any", before))


class _Handover:
    """Takes the place where multiprocessing keeps the process that it is starting."""

    @staticmethod
    def duplicate_for_child(descriptor: int) -> tuple[str, int]:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        return f"/proc/{os.getpid()}/fd/{descriptor}", flags

    DupFd = PipeEnd


def _culprit(function: Callable[..., Any], args: Sequence[Any]) -> str:
    """Which argument, or which name that the function uses, cannot be sent."""
    for number, value in enumerate(args):
        if not _can_be_sent(value):
            return f"Argument {number} ({type(value).__name__})"
    for name, value in _used_by(function).items():
        if not _can_be_sent(value):
            return f"`{name}` ({type(value).__name__}), which {_name(function)} uses,"
    return _name(function)


def _can_be_sent(value: object) -> bool:
    try:
        with _spawning():
            _Packer(io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception:  # noqa: BLE001 - a __reduce__ of the person's own may raise anything
        return False
    return True


def _used_by(function: Callable[..., Any]) -> Mapping[str, Any]:
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    names: dict[str, Any] = getattr(function, "__globals__", {})
    used = {name: names[name] for name in code.co_names if name in names}
    cells = zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=True)
    return used | {name: cell.cell_contents for name, cell in cells}


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def sources_without_file() -> dict[str, list[str]]:
    """Sources of cells, which a rank's traceback could not otherwise read."""
    found: dict[str, list[str]] = {}
    left = MAX_SOURCE_BYTES
    for name, entry in list(linecache.cache.items()):
        if len(entry) == 4 and not os.path.exists(name):  # noqa: PTH110 - Path refuses long names of generated code
            left -= entry[0]
            if left >= 0:
                found[name] = entry[2]
    return found
