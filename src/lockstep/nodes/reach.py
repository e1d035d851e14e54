"""One node's part of a preflight: a socket that the others connect to for a moment, and connections to theirs."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from lockstep.nodes.preflight import Check, partners

CONNECT_S = 3.0
"""How long a connection may take."""
LINGER_S = 5.0
"""How long others may take longer than this node."""


class Reach:
    """Does what the log asks of this node; `take` gets every entry.

    Args:
        node: this node.
        address: the one that its ranks will use for exchanges between nodes.
        tell: adds an entry to the log.
    """

    def __init__(self, node: str, address: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._node, self._address, self._tell = node, address, tell
        self._check: Check | None = None
        self._gone: set[str] = set()
        self._changed: Callable[[], None] = lambda: None

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take the next entry of the log."""
        match entry.get("kind"):
            case "preflight" if self._node in entry["nodes"]:
                self._check = Check.of(entry)
                threading.Thread(target=self._run, args=(self._check,), name="preflight", daemon=True).start()
            case "listens" | "reached" if self._check is not None:
                self._check.take(entry)
            case "gone":
                self._gone.add(str(entry["node"]))
            case "roster" | "refused":
                self._check = None
            case _:
                return
        self._changed()

    def _run(self, check: Check) -> None:
        asyncio.run(self._do(check))

    async def _do(self, check: Check) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # this check is over
                loop.call_soon_threadsafe(changed.set)

        async def until(is_so: Callable[[], bool]) -> None:
            while self._check is check and not is_so():
                await changed.wait()
                changed.clear()

        self._changed = wake
        token = secrets.token_hex(8)
        server, port, why = None, 0, ""
        try:
            server = await asyncio.start_server(lambda _, end: _answer(end, token), self._address, 0)
            port = server.sockets[0].getsockname()[1]
        except OSError as error:
            why = f"its address cannot be used: {os.strerror(error.errno or 0)}"
        try:
            told = {"number": check.number, "node": self._node}
            self._tell({"kind": "listens", **told, "address": self._address, "port": port, "token": token, "why": why})
            await until(lambda: check.all_listen(self._gone))
            if self._check is not check:
                return
            self._tell({"kind": "reached", **told, **await self._ask_all(check)})
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await until(lambda: check.is_over(self._gone))
        finally:
            if server is not None:
                server.close()

    async def _ask_all(self, check: Check) -> dict[str, Any]:
        """Connect to the others: which of them cannot be reached, and how far this clock is ahead of node 0's."""
        others = [check.nodes[other] for other in partners(check.nodes.index(self._node), len(check.nodes))]
        there = [other for other in others if other in check.listening]
        answers = dict(
            zip(there, await asyncio.gather(*(self._ask(check.listening[one]) for one in there)), strict=True)
        )
        not_reached = {node: answer for node, answer in answers.items() if isinstance(answer, str)}
        clock = answers.get(check.nodes[0])
        return {"not": not_reached, "clock_s": clock if isinstance(clock, float) else None}

    async def _ask(self, peer: Mapping[str, Any]) -> float | str:
        """How far this clock is ahead of the peer's, less what the way there may explain; or why it was not reached."""
        if not peer["port"]:
            return str(peer["why"])
        try:
            async with asyncio.timeout(CONNECT_S):
                began = time.time()
                local = (self._address, 0)
                reader, writer = await asyncio.open_connection(peer["address"], peer["port"], local_addr=local)
                try:
                    token, _, theirs = (await reader.read(100)).decode().partition(" ")
                    ended = time.time()
                finally:
                    writer.close()
                if token != peer["token"]:
                    return "another program answers"
                off_s = (began + ended) / 2 - float(theirs)
                return max(0.0, abs(off_s) - (ended - began) / 2) * (1 if off_s > 0 else -1)
        except TimeoutError:
            return "nothing answers"
        except (OSError, ValueError) as error:
            return os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else "it broke off"


async def _answer(end: asyncio.StreamWriter, token: str) -> None:
    """Say who this is and what its clock shows; nothing is read."""
    with suppress(OSError):
        end.write(f"{token} {time.time()}".encode())
        await end.drain()
    end.close()
