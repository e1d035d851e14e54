"""What the live page shows of a run: its story, its ranks, and whether it is over. Each request reads on."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.watch.places import run_at
from samebits.launcher.watch.view import Viewer
from samebits.machine.held_folder import TemporaryFolder
from samebits.machine.visible import visible
from samebits.protocol.run_folder import RunFolder, write_private
from samebits.show.ranks import rank_rows
from samebits.show.run_data import RunData, RunDataReader
from samebits.show.server import LivePage
from samebits.show.story import story_of


@dataclass
class LiveRun:
    """A run that may be under way.

    Args:
        path: its folder, which may not have been made yet.
    """

    path: Path
    _reader: RunDataReader = field(init=False)
    killed: dict[int, float] = field(default_factory=dict)
    """Ranks that somebody killed from the page, and when."""
    _reached: int = 0
    _viewer: Viewer | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._reader = RunDataReader(RunFolder(self.path))

    def state(self) -> dict[str, Any]:
        """What the page shows now."""
        with self._lock:
            data = self._reader.read()
            rows, is_over = self.ranks()
            self._reached = max([self._reached, *(row["step"] for row in rows)])
            if data.is_elsewhere:
                rows = [row | {"pid": 0, "state": "ended" if data.ended is not None else "works"} for row in rows]
                is_over = False
            return {
                "story": story_of(data),
                "ranks": rank_rows(rows, data.events, self.killed, self._reached),
                "is_over": data.ended is not None or is_over,
                "note": "" if data.ended is not None or not is_over else "The launcher of this run is gone.",
            }

    def ranks(self) -> tuple[list[dict[str, Any]], bool]:
        """A row for each rank, and whether all is over as far as their processes show."""
        try:
            self._viewer = self._viewer or Viewer(run_at(str(self.path), self.path))
            view = self._viewer.look()
        except UsageError:
            # The folder was not made yet, or its ranks are on another machine.
            return [], False
        rows = [vars(row) | {"state": str(row.state), "doing": visible(row.doing)} for row in view.rows]
        return rows, view.is_over

    def pid_of(self, rank: int) -> int:
        """The process of a rank that runs; 0 without one."""
        with self._lock:
            rows, _ = self.ranks()
        return next((row["pid"] for row in rows if row["rank"] == rank), 0)

    @property
    def data(self) -> RunData:
        """All that the run has left so far."""
        with self._lock:
            return self._reader.read()

    @property
    def step(self) -> int:
        with self._lock:
            rows, _ = self.ranks()
        return max((row["step"] for row in rows), default=0)


def show_in_browser(page: LivePage, near: Path, *, wanted: bool) -> list[str]:
    """Open a page in a browser here, where there is one.

    Args:
        page: it.
        near: a folder for the file that leads to it, unless it cannot be written: a browser that was installed as a snap
            reads no temporary files.
        wanted: whether a browser may be opened.

    Returns:
        Lines to print.
    """
    lines, over_ssh = [f"page      {page.url}"], bool(os.environ.get("SSH_CONNECTION"))
    if over_ssh:
        forward = f"ssh -L {page.number}:127.0.0.1:{page.number} THIS_HOST"
        lines.append(f"          from your own machine: {forward}, then open that address")
    elif wanted and (_has_display() or sys.platform == "darwin"):
        with suppress(webbrowser.Error, OSError):
            webbrowser.open(_leading_to(page, near).as_uri())
    return lines


def _leading_to(page: LivePage, near: Path) -> Path:
    """A file that leads a browser to the page: the command line of a browser is seen by all users of the machine."""
    parent = near if os.access(near, os.W_OK) else None
    folder = page.ends.enter_context(TemporaryFolder("samebits-page-", parent))
    file = folder / "page.html"
    write_private(
        file, f'<!doctype html><meta http-equiv="refresh" content="0; url={page.url}"><title>samebits</title>\n'
    )
    return file


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
