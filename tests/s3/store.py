"""An S3 server with one bucket, and a door in front of it that a test may shut.

The packages lie in a folder of their own (`build/s3`, or what SAMEBITS_TEST_S3 names), which only the server and the runs
of these tests have on their path.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PACKAGES = Path(os.environ.get("SAMEBITS_TEST_S3") or Path(__file__).parents[2] / "build" / "s3").absolute()
BUCKET = "bucket"
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def why_not() -> str:
    """Why there is no server here; empty when there is one."""
    missing = [name for name in ("moto", "s3fs", "flask") if not (PACKAGES / name).is_dir()]
    return f"{', '.join(missing)} not in {PACKAGES}: make store" if missing else ""


@dataclass
class Store:
    """The server behind its door."""

    server: int
    """The server's port on 127.0.0.1."""
    door: int = 0
    """The port through which runs reach it."""
    shut_for: str = ""
    """What a path holds whose PUT waits at the door until the test ends; empty: none does."""
    fails: bool = False
    """Whether it fails instead of waiting."""
    waits: threading.Event = field(default_factory=threading.Event)
    """Set when one does."""
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def variables(self) -> dict[str, str]:
        """What a process needs to go through the door."""
        return {
            "PYTHONPATH": os.pathsep.join([str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.door}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "hush-hush-hush",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",
        }

    def keys(self, prefix: str = "") -> list[str]:
        """The names of all objects, as the server says."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server}/{BUCKET}?list-type=2&prefix={prefix}") as answer:
            return re.findall("<Key>(.*?)</Key>", answer.read().decode())


@contextmanager
def store() -> Iterator[Store]:
    """A server with an empty bucket."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            found = Store(int(process.stdout.readline()))
            make = urllib.request.Request(f"http://127.0.0.1:{found.server}/{BUCKET}", method="PUT")
            urllib.request.urlopen(make).close()
            door = ThreadingHTTPServer(("127.0.0.1", 0), _door_of(found))
            found.door = door.server_address[1]
            threading.Thread(target=door.serve_forever, daemon=True).start()
            yield found
            found.over.set()
            door.shutdown()
            door.server_close()
        finally:
            process.kill()


def _door_of(store: Store) -> type[BaseHTTPRequestHandler]:
    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.command == "PUT" and store.shut_for and store.shut_for in self.path:
                store.waits.set()
                if not store.fails:
                    store.over.wait()
                self.close_connection = True
                return
            behind = http.client.HTTPConnection("127.0.0.1", store.server)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            behind.request(self.command, self.path, body, headers)
            answer = behind.getresponse()
            content = answer.read()
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            behind.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return Door
