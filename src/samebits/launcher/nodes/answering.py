"""Who called node 0 and has not proved the run's key yet: few bytes, little time, and a small place each.

Runs in: the launcher's thread; a sealed key is made in one of its own, named samebits-seal.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from samebits.errors import EnvironmentFailure
from samebits.launcher.nodes.key import Key
from samebits.launcher.nodes.session import (
    ASKS_FOR_SEAL,
    HELLO_BYTES,
    WRONG_ADDRESS,
    WRONG_KEY,
    HostHello,
    WrongAddress,
    WrongKey,
)
from samebits.launcher.nodes.wire import Loop, Message, Wire, WireEnded

# [Note: a flood of calls delays newcomers, and nobody inside]
# A call costs node 0 an `accept`, 49 bytes, and one HMAC at most. The oldest of too many gives way, and the loop takes few
# between two messages of the nodes inside; the others wait in the kernel.
MOST_OPENING, OPENING_S = 64, 5.0
"""How many calls may be opening at once, and for how long."""
MOST_IN_A_TURN, MOST_IN_A_TICK = 8, 100
MOST_SEALING = 8
"""Who asks for the sealed key: munge takes milliseconds for each."""


@dataclass(eq=False)
class _Caller:
    end: socket.socket
    hello: HostHello
    address: str
    since: float
    came: bytes = b""
    wire: Wire | None = None
    """Once it has proved the key: its first message is awaited."""


class Callers:
    """Those who call at one listening socket.

    Args:
        listener: listens on one address; taken over.
        key: the run's; None: this node cannot use its own, and admits nobody.
        own: the addresses at which this node may be called, as `address_bytes`.
        loop: watches the sockets.
        admit: gets the connection of a caller with the key and its first messages.
        reject: gets the address of one without.
        seal: makes what is given to whoever asks for the sealed key; nothing is given without it.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: Key | None,
        own: Collection[bytes],
        loop: Loop,
        *,
        admit: Callable[[Wire, list[Message]], None],
        reject: Callable[[str], None],
        seal: Callable[[], bytes] | None = None,
    ) -> None:
        self._listener, self._key, self._own, self._loop = listener, key, own, loop
        self._admit, self._reject, self._seal = admit, reject, seal
        self._callers: dict[_Caller, None] = {}
        self._taken = 0
        self._sealing = threading.BoundedSemaphore(MOST_SEALING)
        self.num_refused = 0
        """How many calls did not come in."""
        listener.setblocking(False)
        loop.watch(listener, self._accept)

    def tick(self, now: float) -> None:
        """Close those who take too long, and accept again; call it twice a second."""
        for caller in [one for one in self._callers if now - one.since > OPENING_S]:
            self._refuse(caller)
        self._taken = 0
        self._loop.watch(self._listener, self._accept)

    def close(self) -> None:
        """Close the listening socket and all who are not in yet."""
        for caller in list(self._callers):
            self._refuse(caller)
        self._loop.forget(self._listener)
        self._listener.close()

    def _accept(self, _mask: int) -> None:
        try:
            for _ in range(min(MOST_IN_A_TURN, MOST_IN_A_TICK - self._taken)):
                end, address = self._listener.accept()
                self._taken += 1
                self._begin(end, str(address[0]))
        except BlockingIOError:
            return
        except OSError:
            # It is gone already, or files have run out: then trying at once would spin.
            self._taken = MOST_IN_A_TICK
        if self._taken >= MOST_IN_A_TICK:
            # `tick` watches it again.
            self._loop.forget(self._listener)

    def _begin(self, end: socket.socket, address: str) -> None:
        if len(self._callers) >= MOST_OPENING:
            # A dictionary keeps the order of insertion: the first one is the oldest.
            self._refuse(next(iter(self._callers)))
        hello = HostHello(self._key.secret if self._key is not None else None)
        caller = _Caller(end, hello, address, time.monotonic())
        self._callers[caller] = None
        try:
            end.setblocking(False)
            # Nothing was sent on this socket before, so 49 bytes always fit.
            end.send(hello.greeting)
        except OSError:
            self._refuse(caller, is_watched=False)
            return
        self._loop.watch(end, lambda _mask: self._receive(caller))

    def _refuse(self, caller: _Caller, last: bytes = b"", *, is_watched: bool = True) -> None:
        self.num_refused += 1
        self._callers.pop(caller, None)
        if is_watched:
            self._loop.forget(caller.end)
        with suppress(OSError):
            if last:
                caller.end.send(last)
        with suppress(OSError):
            caller.end.close()

    def _receive(self, caller: _Caller) -> None:
        if caller.wire is not None:
            self._receive_first(caller, caller.wire)
            return
        try:
            data = caller.end.recv(HELLO_BYTES - len(caller.came))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.came += data
        if not data:
            self._refuse(caller)
        elif len(caller.came) == HELLO_BYTES:
            self._prove(caller)

    def _prove(self, caller: _Caller) -> None:
        if caller.came == ASKS_FOR_SEAL:
            self._give_seal(caller)
            return
        try:
            answer, keys = caller.hello.answer(caller.came, self._own)
            caller.end.send(answer)
            caller.wire = Wire.between_nodes(caller.end, keys.from_host, keys.from_caller)
        except WrongKey:
            self._refuse(caller, WRONG_KEY)
            self._reject(caller.address)
        except WrongAddress:
            self._refuse(caller, WRONG_ADDRESS)
        except OSError:
            self._refuse(caller)

    def _receive_first(self, caller: _Caller, wire: Wire) -> None:
        try:
            found = wire.receive()
        except WireEnded:
            self._refuse(caller)
            return
        if found:
            self._callers.pop(caller)
            self._loop.forget(caller.end)
            self._admit(wire, found)

    def _give_seal(self, caller: _Caller) -> None:
        """Give it, in a thread of its own, because munge is a program; then close the call."""
        self._callers.pop(caller)
        self._loop.forget(caller.end)
        if self._seal is None or not self._sealing.acquire(blocking=False):
            caller.end.close()
            return
        threading.Thread(
            target=self._seal_for, args=(caller.end, self._seal), daemon=True, name="samebits-seal"
        ).start()

    def _seal_for(self, end: socket.socket, seal: Callable[[], bytes]) -> None:
        with end, suppress(OSError, EnvironmentFailure):
            end.settimeout(OPENING_S)
            try:
                end.sendall(seal())
            finally:
                self._sealing.release()
