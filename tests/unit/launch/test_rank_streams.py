"""The launcher's end of the ranks' pipes."""

import os
import selectors

from lockstep.launch.screen.cases import Cases
from lockstep.launch.screen.losses import Losses
from lockstep.launch.screen.rank_streams import RankStreams
from lockstep.launch.screen.saying import Saying


def test_a_dead_rank_s_pipes_are_read_once_although_the_loop_has_seen_them_too(tmp_path):
    with selectors.DefaultSelector() as selector:
        streams = RankStreams(
            selector, {0: tmp_path / "rank-0.log"}, Losses(Saying(None), Cases(tmp_path / "findings.jsonl"))
        )
        for end, text in zip(streams.new_pipes(0), (b"one\ntw", b"a warning\n"), strict=True):
            os.write(end, text)
            os.close(end)
        seen = [key.data for key, _ in selector.select(0)]
        assert len(seen) == 2
        assert streams.said(0) == (b"one\ntw", b"a warning\n")
        later = streams.new_pipes(0)  # their descriptors are the closed ones' numbers
        for reader in seen:
            reader()
        assert not streams.drained
        for end in later:
            os.close(end)
        assert streams.said(0) == (b"one\ntw", b"a warning\n")
        assert streams.drained
        streams.end()
    assert sorted((tmp_path / "rank-0.log").read_bytes()) == sorted(b"one\ntwa warning\n")
