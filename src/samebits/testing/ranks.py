"""Run a function on N real ranks: processes that joined a run, over Gloo, as under `samebits run`.

Runs in: the test's process, and in ranks, where a thread waits for the end of the test.

Processes are forked from a server that has imported torch and nothing else, so a rank costs tens of milliseconds.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.machine.held_folder import TemporaryFolder
from samebits.machine.torch_private import COMPILER
from samebits.protocol.environment import Position, RankEnvironment, RankSettings, encode
from samebits.protocol.journal.ring import make_ring
from samebits.protocol.layout.mesh import Form
from samebits.protocol.layout.placement import sized
from samebits.protocol.run_folder import RunFolder
from samebits.rank.run.start import finish

_SERVER = multiprocessing.get_context("forkserver")


def preload(*modules: str) -> None:
    """Import these once, in the server that ranks are forked from. Call before the first `run_ranks`."""
    _SERVER.set_forkserver_preload(["torch", COMPILER, "samebits.testing.ranks", *modules, "samebits.testing.frozen"])


preload()


AFTER_FAILURE_S = 5.0
"""How long the others may take to end by themselves when a rank has raised."""


class RankFailed(AssertionError):  # noqa: N818 - a test failure, not an error
    """A rank raised; the message has its traceback. `error_type` is the name of the exception's class."""

    def __init__(self, rank: int, error_type: str, message: str, trace: str) -> None:
        super().__init__(f"rank {rank} failed\n{trace}")
        self.rank, self.error_type, self.message = rank, error_type, message

    @property
    def is_of_a_peer(self) -> bool:
        """Whether the rank only says that another one has gone."""
        return self.error_type.endswith("PeerLost")


@dataclass(frozen=True)
class Started:
    """How the ranks of a test are started."""

    ranks: int
    lanes: int | None = None
    threads: int = 1
    device: str = "cpu"
    form: Form = field(default_factory=Form)
    nodes: tuple[int, ...] = ()
    """How many of the ranks each node has; one node by default. All are processes of this machine that take it for several."""
    timeout_s: float = 60.0
    """After this time the Python stack of every rank is printed, and all are ended."""


def run_ranks(function: Callable[..., Any], started: Started, *args: Any) -> list[Any]:
    """Call `function(*args)` on every rank and return what each returned, in rank order.

    Args:
        function: a module-level function that calls `samebits.init()` itself. It and its results are pickled.
        started: how many ranks, lanes, threads.

    Raises:
        RankFailed: for the first rank that raised something other than `PeerLost`; ranks that wait for it are ended.
    """
    with TemporaryFolder("samebits-test-") as folder:
        processes, readers = [], []
        run_folder = RunFolder(folder)
        for path in run_folder.folders():
            path.mkdir(exist_ok=True)
        for rank in range(started.ranks):
            make_ring(run_folder.journal(rank), rank)
            nodes = sized(started.nodes or (started.ranks,))
            node = nodes.node_of(rank)
            position = Position(rank, rank - nodes.bounds[node], started.ranks, nodes.sizes[node])
            settings = RankSettings(
                Path(folder), started.threads, lanes=started.lanes, device=started.device, form=started.form
            )
            variables = encode(RankEnvironment(position, settings), 0, "test")
            variables |= {"GLOO_SOCKET_IFNAME": "lo", "GROUP_RANK": str(node), "GROUP_WORLD_SIZE": str(nodes.num_nodes)}
            reader, writer = _SERVER.Pipe(duplex=False)
            process = _SERVER.Process(target=_rank, args=(function, args, variables, writer, sys.path), daemon=False)
            process.start()
            writer.close()
            processes.append(process)
            readers.append(reader)
        try:
            return _collect(processes, readers, started.timeout_s)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _rank(
    function: Callable[..., Any], args: Sequence[Any], variables: dict[str, str], writer: Any, path: list[str]
) -> None:
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # The server has set forkserver; loader workers are to start as in any script.
    multiprocessing.set_start_method("fork", force=True)
    sys.path[:] = path
    os.environ.update(variables)
    try:
        result: tuple[Any, ...] = ("returned", function(*args))
        finish()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must learn of it
        result = ("raised", type(error).__name__, str(error), traceback.format_exc())
    writer.send(result)
    writer.close()


def _end_with_the_test() -> None:
    """End this rank with the test process: one that waits forever must not outlive a killed test."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _collect(processes: Sequence[Any], readers: Sequence[Any], timeout_s: float) -> list[Any]:
    waiting = dict(zip(readers, range(len(readers)), strict=True))
    results: dict[int, Any] = {}
    failures: list[RankFailed] = []
    while waiting:
        own = any(not failure.is_of_a_peer for failure in failures)
        ready = multiprocessing.connection.wait(list(waiting), min(AFTER_FAILURE_S, timeout_s) if own else timeout_s)
        if not ready and own:
            # [Note: why the wait ends after the first failure]
            # A rank that waits inside NCCL for one that has failed notices nothing and would never end.
            break
        if not ready:
            for process in processes:
                if process.is_alive():
                    os.kill(process.pid, signal.SIGUSR1)
            # Long enough for faulthandler to print.
            time.sleep(1.0)
            raise TimeoutError(
                f"ranks {sorted(waiting.values())} did not finish within {timeout_s} s; stacks are above"
            )
        for reader in ready:
            rank = waiting.pop(reader)
            try:
                kind, *values = reader.recv()  # type: ignore[union-attr,call-arg]
            except EOFError:
                kind, values = "raised", ["Died", "the process ended", f"exit code {processes[rank].exitcode}"]
            if kind == "returned":
                results[rank] = values[0]
            else:
                failures.append(RankFailed(rank, *values))
    for failure in sorted(failures, key=lambda failure: failure.is_of_a_peer):
        raise failure
    return [results[rank] for rank in sorted(results)]
