"""The launcher's loop: it starts the ranks, watches them, and stops them when one fails or on a user signal.

It only carries out: `stopping` decides what to send to whom, `verdict` whose fault it was.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from samebits.errors import EnvironmentFailure
from samebits.launcher.diagnosis.scenes import Scenes
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.recovery import Loss
from samebits.launcher.request import LaunchRequest
from samebits.launcher.signals import CaughtSignals
from samebits.launcher.supervise.all_nodes import OtherNodes
from samebits.launcher.supervise.ending_ranks import Ending, EndingRanks, Interruption, Orders
from samebits.launcher.supervise.last_snapshots import LastSnapshots
from samebits.launcher.supervise.observer import UPDATE_S, Observer
from samebits.launcher.supervise.ranks import Ranks
from samebits.launcher.supervise.stalls import Stalls
from samebits.launcher.supervise.starting import RunStore, Start
from samebits.launcher.supervise.surroundings import Surroundings
from samebits.launcher.terminal.cases import Losses
from samebits.launcher.terminal.rank_output import RankStreams
from samebits.protocol.journal.signals import Asking, Event, read_news
from samebits.protocol.nursery_messages import (
    Broken,
    ChannelClosed,
    Exited,
    NotSpawned,
    Ready,
    Signalled,
    Spawned,
    Sweep,
    Swept,
)
from samebits.protocol.run_folder import RunFolder

IDLE_S = 0.5
SWEEP_S = 5.0
DRAIN_S = 2.0


@dataclass
class Supervisor:
    """One start of all ranks of a run. `run` returns when no process of them is left."""

    request: LaunchRequest
    folder: RunFolder
    nursery: NurseryHandle
    losses: Losses
    observer: Observer
    store: RunStore
    began_ns: int
    signals: CaughtSignals
    """Open: they are caught as long as the run may start again."""
    history: list[Loss]
    """What was lost so far, in all attempts."""
    make_snapshot_folder: Callable[[], None]
    nodes: OtherNodes | None = None
    """The other nodes of the run, if there are any."""
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _joined: bool = False
    _swept: bool = False
    _lost: bool = False
    _has_begun: bool = False
    """Whether all ranks have had a process."""

    def run(self) -> Ending:
        """Start the ranks, watch until all have ended, sweep up.

        Raises:
            EnvironmentFailure: when the nursery cannot import torch, or dies.
        """
        logs = {rank: self.folder.log(rank) for rank in self.request.numbers}
        self._streams = RankStreams(self._selector, logs, self.losses)
        console, cluster = self.losses.console, self.nodes.cluster if self.nodes is not None else None
        self._orders, self._ranks = Orders(self.nursery, console), Ranks(self.folder)
        asking = Asking(self.folder.journal(self.request.numbers.start))
        self._interruption = Interruption(self.request, asking, console)
        last = LastSnapshots(self.request.recovery, self.observer, self.history)
        self._ending = EndingRanks(self._ranks, self._orders, self._interruption, self.observer, cluster, last)
        scenes = Scenes(str(self.request.entry.script or ""), self.observer.journals, self.folder.answers)
        self._stalls = Stalls(
            scenes, self.losses.cases, console, self.request, self._orders.kill, self._ending.stall, self.nodes
        )
        self._surroundings = Surroundings(console, self.losses.cases)
        self._news, self._news_end = os.pipe()
        os.set_blocking(self._news, False)
        try:
            self._register()
            self._on_signal()
            if self.nursery.ready is not None and not self._interruption.by:
                self._start_ranks()
            self._watch(self._all_ended)
            self._sweep()
        finally:
            if console.terminal is not None:
                console.terminal.progress(None)
            self._streams.end()
            self._stalls.end()
            self._selector.close()
            os.close(self._news)
            os.close(self._news_end)
        ends = [*self._ranks.ends.values()]
        gone = self._lost or self._orders.gave_up
        by, saved = self._interruption.ended(ends), asking.saved
        joined, known = self._joined or self.observer.met, self._surroundings.known
        return Ending(ends, by, joined, gone, saved, self._interruption.waited_s, known)

    def _register(self) -> None:
        for source, handler in (
            (self.nursery.channel, self._on_nursery),
            (self._news, self._on_news),
            (self.signals, self._on_signal),
        ):
            self._selector.register(source, selectors.EVENT_READ, handler)
        if self.nodes is not None:
            cluster = self.nodes.cluster
            self._selector.register(cluster, selectors.EVENT_READ, cluster.read)
            cluster.liveness.ranks = self._running

    def _running(self) -> list[int]:
        return [*self._ranks.running_pids.values()]

    def _watch(self, over: Callable[[], bool], deadline: float = float("inf")) -> None:
        look_at = 0.0
        while not over() and (now := time.monotonic()) < deadline:
            next_line = self._streams.show_due(now)
            self._ending.send_due(now)
            if now >= look_at:
                self.observer.look(now)
                self._surroundings.look(self._ranks.running_pids)
                if self._ending.are_to_continue:
                    self._stalls.look(self._ranks.running_pids)
                look_at = now + (UPDATE_S if self.losses.console.terminal is not None else IDLE_S)
            self.observer.warn_alone(now, joined=self._joined)
            give_up_at = self._orders.give_up(now, self._ranks.running_pids, user_waits=bool(self._interruption.by))
            moments = [
                look_at,
                deadline,
                give_up_at,
                *self._ending.moments,
                *([next_line] if next_line else []),
            ]
            for key, _ in self._selector.select(max(min(moments) - time.monotonic(), 0)):
                key.data()
            self._ending.heed_others()
            if self.nodes is not None:
                self.nodes.update()

    def _all_ended(self) -> bool:
        return self._ranks.have_ended or bool(self._interruption.by and not self._ranks)

    def _start_ranks(self) -> None:
        self.make_snapshot_folder()
        self._start = start = Start(self.request, self.nursery, self.store, self.losses.console)
        for number in self.request.numbers:
            self._ranks.add(number)
            start.rank(number, self._streams.new_pipes(number), self._news_end)

    # Events

    def _on_nursery(self) -> None:
        try:
            message, _ = self.nursery.channel.receive()
        except ChannelClosed:
            self._nursery_lost()
            return
        match message:
            case Ready():
                self.nursery.ready = message
                if not self._interruption.by:
                    self._start_ranks()
            case Broken() | NotSpawned():
                raise message.failure
            case Spawned():
                self._ranks.began(message.rank, message.pid)
                if not self._has_begun and len(self._ranks.pids) == self.request.placement.ranks:
                    self._has_begun = self.observer.has_begun = True
                    self._start.say(self.began_ns, self._ranks.pids)
            case Exited():
                self._on_exit(message)
            case Signalled():
                self._orders.answered()
            case Swept():
                self._swept = True

    def _on_exit(self, message: Exited) -> None:
        # What the rank reported before it ended decides how it ended.
        self._on_news()
        end = self._ranks.exited(message)
        if self._surroundings.ended(end):
            end = self._ranks.killed_from_outside(end.rank)
        self._ending.ended(end)

    def _on_news(self) -> None:
        with suppress(BlockingIOError):
            self._take_news(os.read(self._news, 1 << 16))

    def _take_news(self, text: bytes) -> None:
        for line in text.splitlines():
            news = read_news(line)
            match news.event:
                case Event.JOINED | Event.MET:
                    if news.event is Event.MET and not self._joined:
                        self._start.say_plain()
                    self._joined = True
                case Event.STORE:
                    self.store.serve()
                    self._joined = True
                case Event.LEAVING:
                    self._ranks.leaving(news)
                case Event.FAILED:
                    failure = self._ranks.reported(news.rank, news.failure)
                    if failure is not None:
                        self._ending.fail(news.rank, failure.kind)
                case Event.KEEPS | Event.KEPT:
                    self._ending.last.take(news)

    def _on_signal(self) -> None:
        for number in self.signals.take():
            # At a debugger's prompt Ctrl-C is for the debugger.
            if number == signal.SIGINT and self.observer.paused and not self._interruption.by:
                self._ending.pass_on()
            else:
                self._ending.take_signal(number)
        self._ending.send_due(time.monotonic())

    def _nursery_lost(self) -> None:
        self._selector.unregister(self.nursery.channel)
        self._lost = True
        self.nursery.bury(self._ranks.running_pids.values())
        self._ranks.vanished(128 + signal.SIGKILL, signal.SIGKILL, time.monotonic_ns())
        if not (self._interruption.by or self._orders.gave_up):
            self.nursery.check_import()
            raise EnvironmentFailure(
                "The nursery (the parent of all ranks) was killed from outside, and the ranks with it."
            )

    def _sweep(self) -> None:
        """End what the ranks left behind, then read the pipes to their end."""
        self._ending.plan.sends = ()
        if self._ranks and not self._lost and self.nursery.send(Sweep()):
            self._watch(lambda: self._swept or self._lost, time.monotonic() + SWEEP_S)
            if not (self._swept or self._lost):
                self._lost = True
                self.nursery.kill()
                self.nursery.bury(self._ranks.running_pids.values())
        self._watch(lambda: self._streams.drained, time.monotonic() + DRAIN_S)
