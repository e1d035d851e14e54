"""Calls of a process group as torch sees those of its own backends: operations of its dispatcher, named in profiles.

torch's C++ backends are reached through operations like `c10d::allreduce_`. Watchers of operations find them there:
dispatch modes (`CommDebugMode` counts), the profiler, and tensors that stand for others, which hand on the ones inside.
A process group in Python gets its calls directly, so a watched call goes through the same operation on a group without
a backend first, and comes back here from it. Without a watcher that costs two reads of a variable.

Runs in: a rank's threads that call the group; an event of a profile ends in a thread of its own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd import profiler
from torch.futures import Future

from samebits.machine.torch_private import FakeTensor, TorchDispatchMode, dispatching
from samebits.rank.process_group.asked import QUESTIONS
from samebits.rank.process_group.operands import NoNumbers
from samebits.rank.process_group.work import Handle

NAME = "samebits"
Call = Callable[..., Any]


def seen(num_tensors: int, title: str, name: str = "") -> Callable[[Call], Call]:
    """Mark a method of a process group that torch calls.

    Args:
        num_tensors: how many of its first arguments are tensors or lists of them.
        title: its name in profiles, after the backend's.
        name: torch's for the method, if it has another.
    """

    def decorate(method: Call) -> Call:
        # `show` asks torch for the operation of this name.
        method.__name__ = name or method.__name__

        @functools.wraps(method)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            # Also what torch's C++ and functional collectives call.
            QUESTIONS.before_call(method.__name__)
            if dispatching._is_in_torch_dispatch_mode or profiler._is_profiler_enabled:  # noqa: SLF001 - its functions cost more
                return show(group, method, title, args[:num_tensors], args[num_tensors:], kwargs)
            try:
                return method(group, *args, **kwargs)
            except NoNumbers as problem:
                if not problem.stands_for_others:
                    raise
            return show(group, method, title, args[:num_tensors], args[num_tensors:], kwargs)

        return call

    return decorate


def show(  # noqa: PLR0917 - the parts of one call
    group: Any, method: Call, title: str, tensors: Sequence[Any], options: Sequence[Any], more: Mapping[str, Any]
) -> Any:
    """Make the call through torch's dispatcher; returns what the method returns."""

    def make(inner: Sequence[Any]) -> Any:
        return _recorded(title, lambda: method(group, *inner[: len(tensors)], *options, **more))

    arrival = _Arrival(make)
    with _below_all_modes(arrival):
        getattr(group.stand_in, method.__name__)(*tensors, *options, **more)
    return arrival.result


class _Arrival(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Where the operation leaves the dispatcher, after everybody has looked at it; the call is made there."""

    def __init__(self, call: Callable[[Sequence[Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call = call
        self.result: Any = None

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace != "c10d" or any(issubclass(each, FakeTensor) for each in types):
            return func(*args, **(kwargs or {}))
        if any(each is not Tensor for each in types):
            # The tensors pass on what is inside them.
            return NotImplemented
        names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001 - torch has no public name
        # A barrier has a tensor, which means nothing, in the place of arguments.
        self.result = self._call(args[: names.index("process_group")])
        boxed = self.result.boxed()
        return boxed if len(func._schema.returns) == 1 else (args[0], boxed)  # noqa: SLF001


@contextmanager
def _below_all_modes(arrival: _Arrival) -> Iterator[None]:
    """Have the mode of this call asked after all others of this thread."""
    stack = dispatching._get_current_dispatch_mode_stack()  # noqa: SLF001 - torch has no public way to put one below
    # torch's own modes are below all others anyway.
    own_places = [getattr(mode, "_mode_key", None) for mode in stack]
    above = [dispatching._pop_mode() for place in own_places if place is None]  # noqa: SLF001
    try:
        with arrival:
            for mode in reversed(above):
                dispatching._push_mode(mode)  # noqa: SLF001
            try:
                yield
            finally:
                for _ in above:
                    dispatching._pop_mode()  # noqa: SLF001
    finally:
        for mode in reversed(above):
            dispatching._push_mode(mode)  # noqa: SLF001


def _recorded(title: str, call: Callable[[], Any]) -> Any:
    """Make the call; in a profile it is an event with this title that lasts until the exchange is finished."""
    if not profiler._is_profiler_enabled:  # noqa: SLF001
        return call()
    record = profiler.record_function(f"{NAME}:{title}")
    record.__enter__()  # type: ignore[no-untyped-call]
    over: Future[None] = Future()
    record._call_end_callbacks_on_future(over)  # noqa: SLF001 - as torch's own for what ends later
    try:
        work = call()
    except BaseException:
        _end(over)
        raise
    if isinstance(work, Handle) and not work.transfer.is_done:
        work.transfer.then.append(functools.partial(_end, over))
    else:
        _end(over)
    return work


def _end(over: Future[None]) -> None:
    """End the event from another thread, so that the profiler shows it beside this thread's calls, not around them."""
    thread = threading.Thread(target=over.set_result, args=(None,))
    thread.start()
    thread.join()
