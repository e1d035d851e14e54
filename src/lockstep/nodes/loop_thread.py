"""A thread with an event loop of asyncio: what gate and tunnel live on.

It is started in a process that has one thread and ended with `close`; signals go to the main thread as before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class LoopThread:
    """One thread in which coroutines and callbacks run, one at a time."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()

    def start(self) -> None:
        """Start the thread, and wait until its loop runs."""
        self._thread.start()
        self._started.result()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Its loop; started ones only."""
        return self._started.result(timeout=0)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Let the thread do `work`, wait for it, and return or raise what it does. Not from the thread itself."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        """Cancel what runs, and end the thread. Closing twice, or what never started, is fine."""
        if self.is_running:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        await self._stop.wait()
