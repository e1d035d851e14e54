"""What is seen of ranks that come one after the other."""

import os
import time

from samebits.launcher.diagnosis.scenes import Scenes
from samebits.protocol.journal.gauges import Waiting
from samebits.protocol.journal.ring import JournalReader, JournalWriter, Phase, make_ring
from samebits.protocol.journal.waiting_note import WaitingNote


def test_a_rank_that_comes_between_two_lessons_has_no_usual_time_yet(tmp_path):
    journals = {}
    for rank in range(2):
        path = tmp_path / str(rank)
        make_ring(path, rank)
        JournalWriter(path).write(Phase.EXCHANGE, "gradients", 3)
        WaitingNote(path)._write(Waiting(time.monotonic_ns() - 4_000_000_000, frozenset({1 - rank}), "all_reduce"))
        journals[rank] = JournalReader(path)
    scenes = Scenes("", journals)
    try:
        assert scenes.look({0: os.getpid()})[0].doing is not None
        seen = scenes.look({0: os.getpid(), 1: os.getpid()})
        assert seen[1].doing is not None
        assert seen[1].doing.usual_s is None
    finally:
        scenes.end()
