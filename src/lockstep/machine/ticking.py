"""A file descriptor that becomes readable again and again: a timer for whoever waits in a selector (timerfd_create(2))."""

from __future__ import annotations

import ctypes
import os
import time

_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK


def ticking(every_s: float) -> int:
    """Make one; read eight bytes from it at each tick, and close it. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    timer = int(library.timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC_NONBLOCK))
    seconds, fraction = divmod(every_s, 1.0)
    moment = (int(seconds), int(fraction * 1e9))
    times = (ctypes.c_long * 4)(*moment, *moment)  # struct itimerspec: the interval, and the first time
    if timer < 0 or library.timerfd_settime(timer, 0, times, None) < 0:
        raise OSError(ctypes.get_errno(), "no timer")
    return timer
