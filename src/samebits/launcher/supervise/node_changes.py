"""How a run takes in nodes that come, and lets go those that leave: at the next step, once its state is in memory.

Asked on the run's first node. A script without `samebits.init` starts again from its beginning, as under torchrun.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from samebits.launcher.nodes.cluster import Cluster
from samebits.launcher.request import LaunchRequest
from samebits.launcher.supervise.observer import Observer
from samebits.launcher.terminal.report import Line
from samebits.launcher.terminal.terminal import Console
from samebits.protocol.journal.signals import Asking
from samebits.protocol.saving import newest_kept

PATIENCE_S = 30.0
"""How long a leaving node is kept for a snapshot. Steps may be long; without one the newest older state does."""


@dataclass
class Regrouping:
    """That of one round.

    Args:
        request: the run.
        asking: what rank 0 is asked through.
        observer: what the launcher sees of the ranks.
        console: where lines go.
    """

    request: LaunchRequest
    asking: Asking
    observer: Observer
    console: Console
    _before: int | None = None
    """The step of the newest snapshot when a new one was wanted."""
    _since_s: float = 0.0
    """Since when; 0.0 while none is."""
    _has_warned: bool = False

    def is_due(self, cluster: Cluster) -> bool:
        """Whether all ranks are to end now, and to start again on other nodes."""
        if not cluster.is_host or not cluster.view.changes():
            return False
        if not self.observer.uses_samebits:
            return True
        newest = self._newest()
        if not self._since_s:
            self._before, self._since_s = newest, time.monotonic()
            self.asking.want_snapshot()
        if newest is not None and newest != self._before:
            return True
        why = self.observer.no_snapshots() if self.request.snapshots is not None else "--snapshots off"
        if why and not self._has_warned:
            self._has_warned = True
            self.console.line(
                Line("nodes", f"{cluster.view.changes()}, which cannot resume from here (no snapshot: {why})")
            )
        leaves = bool(cluster.view.leaving - cluster.view.gone)
        return leaves and (bool(why) or time.monotonic() - self._since_s > PATIENCE_S)

    def _newest(self) -> int | None:
        return newest_kept(Path(self.request.snapshots.folder)) if self.request.snapshots is not None else None
