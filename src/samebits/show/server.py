"""The page of a run under way: an HTTP server on 127.0.0.1, for one user.

A random port, and a token in the address: without it every request is refused, as is one for another host name (a page of
somebody else's, whose name was made to lead here). It answers from the run folder; it may end ranks only where it was made to.

# [Note: why the token stays in the address, and is no cookie]
A cookie goes to every port of its host, so the browser would hand it to the servers of this machine's other users. A
browser is not given the address on its command line, which they can read, but a file of mode 0600 that leads there.

Runs in: a daemon thread of the command, named `samebits-page`, and one more for each connection.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

from samebits.errors import UsageError
from samebits.show.report import page

HOST = "127.0.0.1"
PATIENCE_S = 30.0
"""How long a connection may last that has not shown the token, or not again."""
MOST_CONNECTIONS = 64
"""With more the one that is late first is closed: anybody on this machine can open some."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


@dataclass
class LivePage:
    """Serves one page; a context manager.

    Args:
        state: what it shows now, as JSON values.
        kill: ends this rank; None where the page may not.
        port: 0 for any that is free.

    Raises:
        UsageError: when the port is taken.
    """

    state: Callable[[], dict[str, Any]]
    kill: Callable[[int], None] | None = None
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    seen_over: threading.Event = field(default_factory=threading.Event)
    """Whether a browser has what is shown when all is over."""
    num_requests: int = 0
    ends: ExitStack = field(default_factory=ExitStack)
    """What is done once a browser has the page, at the latest at the end."""

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"shown": self})
        try:
            self._server = _Server((HOST, self.port), handler)
        except OSError as error:
            raise UsageError(
                f"Port {self.port} of {HOST} cannot be used: {error.strerror}.",
                "Leave --port out, or name another one.",
            ) from None
        threading.Thread(target=self._server.serve_forever, name="samebits-page", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.ends.close()

    @property
    def number(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The address, for a browser on this machine."""
        return f"http://{HOST}:{self.number}/?token={self.token}"


class _Server(ThreadingHTTPServer):
    """Of strangers nothing is printed, and none of them keeps a thread."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self.until_s: dict[Any, float] = {}
        """The connections, and when each is closed."""
        super().__init__(*args)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - their names are the library's
        if len(self.until_s) >= MOST_CONNECTIONS:
            self._end(min(self.until_s.copy().items(), key=lambda one: one[1])[0])
        self.until_s[request] = time.monotonic() + PATIENCE_S
        return True

    def shutdown_request(self, request: Any) -> None:
        self.until_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called twice a second: end what is late."""
        now = time.monotonic()
        for request, until_s in self.until_s.copy().items():
            if now > until_s:
                self._end(request)

    def _end(self, request: Any) -> None:
        """The connection's thread finds that nothing more comes."""
        self.until_s.pop(request, None)
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser has gone; anything else is an error of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Runs in: a thread for each connection."""

    shown: LivePage
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_S

    def log_message(self, *_: object) -> None:
        """Nothing: the terminal is the run's."""

    def do_GET(self) -> None:
        path = self._path()
        if path == "/":
            data = {"mode": "live", "state": self.shown.state()}
            self._answer(HTTPStatus.OK, page(data).encode(), "text/html; charset=utf-8")
            self.shown.ends.close()
        elif path == "/state":
            state = self.shown.state()
            self._answer(HTTPStatus.OK, json.dumps(state, allow_nan=False).encode(), "application/json")
            if state.get("is_over"):
                self.shown.seen_over.set()
        elif path is not None:
            self._answer(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """`/kill/2`."""
        path = self._path()
        if path is None:
            return
        word, _, rank = path[1:].partition("/")
        if word != "kill" or self.shown.kill is None or not rank.isdecimal() or len(rank) > 6:
            self._answer(HTTPStatus.NOT_FOUND)
            return
        self.shown.kill(int(rank))
        self._answer(HTTPStatus.NO_CONTENT)

    def _path(self) -> str | None:
        """The path of a request that may be answered; None where it was refused."""
        path, _, query = self.path.partition("?")
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        token = parse_qs(query).get("token", [""])[0]
        if host in {HOST, "localhost"} and hmac.compare_digest(token.encode(), self.shown.token.encode()):
            self.shown.num_requests += 1
            self.server.until_s[self.connection] = time.monotonic() + PATIENCE_S
            return path
        self.close_connection = True
        self._answer(HTTPStatus.FORBIDDEN)
        return None

    def _answer(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> None:
        # The browser has gone.
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(body)


def kill_process(pid: int) -> None:
    """End a process as `kill -9` does; one that has ended stays so."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
