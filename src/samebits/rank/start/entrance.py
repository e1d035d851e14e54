"""What a new process does to become a rank: environment, standard streams, `__main__`, and the exit code.

Reached in two ways: a child that the nursery forked calls `run_rank`; with --start-method spawn a new interpreter comes in by
`python -m samebits.rank.start.entrance PARENT ORDER NEWS TABLE PORT`. The script's exception is written as a
failure record and into the rank's log; the launcher prints it, once.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import io
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from samebits.errors import UsageError
from samebits.machine.leftovers import MARKER, ending, have_ended, remove_shared_memory, share_socket_folder
from samebits.machine.processes import die_with_parent, let_read
from samebits.machine.stacks import answer_into
from samebits.protocol.environment import decode, encode_place
from samebits.protocol.journal.failure import (
    CAUSE_S,
    STOPPED_WITHIN_S,
    FailureKind,
    describe,
    kind_of,
    shortened,
    user_line,
    write_failure,
)
from samebits.protocol.journal.signals import Event, News
from samebits.protocol.journal.waiting_note import note_waits
from samebits.protocol.late_settings import remember
from samebits.protocol.meeting_place import InheritedFile, MeetingPlace, do_last, left_at
from samebits.protocol.rank_task import RankTask, apply_variables, read_task
from samebits.protocol.run_folder import RunFolder
from samebits.rank.start.guards.device_guard import guard_backends, guard_devices
from samebits.rank.start.guards.meeting_guard import Launcher, guard_meetings
from samebits.rank.start.guards.nested_guard import guard_nested_ranks, guard_replicas
from samebits.rank.start.script_main import (
    Program,
    function_program,
    module_program,
    say_equal_draws,
    script_program,
    start_streams,
)

MOST_NEWS_BYTES = 3500
"""The kernel keeps a message of up to 4096 bytes together, whatever else is written into the same pipe."""
ENDING_S = 1.0
"""How long a worker that is just ending is waited for."""


def run_rank(order: RankTask, news: int, parent: int, place: Sequence[int]) -> int:
    """Be the rank until its script has ended; the exit code is for `sys.exit`.

    Args:
        order: what to run.
        news: a pipe to the launcher that says at once what its journals and exits would say later.
        parent: the nursery; when it ends, the rank ends.
        place: the descriptors of the run's table and of its port's socket.
    """
    die_with_parent(parent)
    # Ctrl-C before the script's first line ends the rank silently.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The nursery ignores SIGUSR1, and a fork inherits that.
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    table, port = map(InheritedFile.at, place)
    apply_variables({**order.variables, **encode_place(MeetingPlace(table, port, InheritedFile.at(news)))})
    if "torch" in sys.modules:
        remember(os.environ)
    folder = RunFolder(Path(order.run_folder))
    note_waits(folder.journal(order.rank))
    log = os.open(folder.log(order.rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    faulthandler.enable(log)
    answer_into(folder.answers(order.rank))
    let_read(int(os.environ.get(MARKER, "0").partition("-")[0]))  # the launcher
    atexit.register(do_last)
    share_socket_folder()
    _line_buffered_streams()
    start_streams(fixed=order.calls_init)
    over = _guard(order, news, port)
    _debugger(order)
    code = _run_script(order, news, log)
    over(not code or isinstance(sys.last_value, SystemExit))
    if not code and order.calls_init and order.rank == 0 and order.variables.get("WORLD_SIZE") != "1":
        say_equal_draws()
    _report_joined(order, news)
    return code


def _line_buffered_streams() -> None:
    """Let lines leave at once, although they go through a pipe."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=True)


def _guard(order: RankTask, news: int, port: InheritedFile) -> Callable[[bool], None]:
    """Let mistakes that would block raise where the script makes them; what is returned hears how the script ended."""
    variables = {name: value for name, value in order.variables.items() if value is not None}
    environment = decode(variables)
    met, wants_store = (partial(News(order.rank, event).tell, news) for event in (Event.MET, Event.STORE))
    guard_meetings(variables, Launcher(met, wants_store, port))
    settings = environment.settings
    guard_backends(settings.backend if settings else "", settings.device if settings else "cpu")
    guard_nested_ranks(variables, environment.position)
    if settings is not None and settings.device == "cuda":
        guard_devices(environment.position, settings.run_folder)
    return guard_replicas(environment)


def _debugger(order: RankTask) -> None:
    """Let `breakpoint()` open the debugger in rank 0; the others have no terminal and continue."""
    journal = RunFolder(Path(order.run_folder)).journal(order.rank)

    def stop(*args: object, **kwargs: object) -> object:
        if order.rank != 0:
            return None
        stop_at = importlib.import_module("samebits.rank.start.debugger").stop_at
        return stop_at(sys._getframe(1), journal, *args, **kwargs)  # noqa: SLF001

    sys.breakpointhook = stop


def _run_script(order: RankTask, news: int, log: int) -> int:
    try:
        program = _program(order)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        program()
    except SystemExit as ending:
        code = _exit_code(ending)
        if code:
            # Exit handlers (`finish` is one) see that the script did not end well.
            sys.last_value = ending
        place = user_line(ending, Path(order.script).absolute())
        left_at.append(place)
        News(order.rank, Event.LEAVING, code, place=place, time_ns=time.monotonic_ns()).tell(news)
        return code
    except KeyboardInterrupt as error:
        # Reported only when it did not come from the user at the launcher.
        _failed(order, error, news, log)
        return 128 + signal.SIGINT
    except BaseException as error:  # noqa: BLE001 - whatever the script raises is its failure
        return _failed(order, error, news, log)
    News(order.rank, Event.LEAVING, time_ns=time.monotonic_ns()).tell(news)
    return 0


def _program(order: RankTask) -> Program:
    if order.parcel:
        return function_program(order.parcel, order.rank, order.folder)
    set_up = module_program if order.module else script_program
    return set_up(order.module or order.script, order.args)


def _exit_code(ending: SystemExit) -> int:
    """The code of `sys.exit(...)`; a text goes to standard error and counts as 1, as in Python."""
    if ending.code is None:
        return 0
    if isinstance(ending.code, int):
        return ending.code & 0xFF
    print(ending.code, file=sys.stderr)
    return 1


def _failed(order: RankTask, error: BaseException, news: int, log: int) -> int:
    # Exit handlers (`finish` is one) see that the script did not end well.
    sys.last_value = error
    # With a loader worker alive, torch's handler would raise wherever we are.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    is_peer = kind_of(error) is FailureKind.PEER
    if is_peer:
        # Usually the cause is reported meanwhile, and the launcher stops this rank. If all wrote records and took
        # torch down, on cores that they share, nobody would learn the cause: with 64 ranks on 2 cores for ten
        # seconds and more.
        _rest(CAUSE_S)
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or order.script).absolute()
    failure = describe(order.rank, error, script, (Path(__file__).parents[1], Path("<frozen runpy>")))
    with suppress(Exception):  # what only tidies up hides no failure
        remove_shared_memory(_ended_workers())
    is_written = write_failure(RunFolder(Path(order.run_folder)).failure(order.rank), failure)
    shown = None if is_written else shortened(failure, MOST_NEWS_BYTES)
    News(order.rank, Event.FAILED, failure=shown).tell(news)
    with suppress(OSError):
        os.write(log, failure.traceback.encode(errors="backslashreplace"))
    _call_hook(error)
    if is_peer:
        _rest(STOPPED_WITHIN_S)
    return 2 if isinstance(error, UsageError) else 1


def _ended_workers() -> list[int]:
    """Processes of multiprocessing that this one has reaped: the nursery's sweep does not know them."""
    found = []
    for one in getattr(sys.modules.get("multiprocessing.process"), "_dangling", ()):
        with suppress(ValueError):  # a closed one has no number any more
            found.append(one.pid)
    pids, until = {pid for pid in found if pid}, time.monotonic() + ENDING_S
    # [Note: a worker that is just ending]
    # Its sockets are closed before it counts as ended, so this rank may have failed by that.
    while any(not have_ended({pid}) for pid in pids & ending()) and time.monotonic() < until:
        time.sleep(0.01)
    return [pid for pid in pids if have_ended({pid})]


def _rest(seconds: float) -> None:
    with suppress(KeyboardInterrupt):
        select.select([], [], [], seconds)


def _call_hook(error: BaseException) -> None:
    """Call a hook that the script set (an experiment tracker's, say); torch's only prints the traceback again."""
    hook = sys.excepthook
    if hook is not sys.__excepthook__ and not str(hook.__module__).startswith("torch."):
        with suppress(Exception):
            hook(type(error), error, error.__traceback__)


def _report_joined(order: RankTask, news: int) -> None:
    """Report a script that met its peers in its own way, so it does not count as N copies that train alone."""
    distributed = sys.modules.get("torch.distributed")
    if (
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    ):
        News(order.rank, Event.JOINED).tell(news)


def main(parent: int, order: int, news: int, *place: int) -> int:
    """Enter from a fresh interpreter; descriptors arrive as numbers."""
    for descriptor in (order, news, *place):
        os.set_inheritable(descriptor, False)
    task = read_task(order)
    os.close(order)
    return run_rank(task, news, parent, place)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
