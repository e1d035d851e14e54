"""Whether another process still lives, from what it has told about itself."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

from samebits.rank.transport.local.process import RankProcess


def test_a_process_has_ended_when_it_is_dead_or_its_number_is_another_ones():
    here = RankProcess.here()
    assert here.process == os.getpid()
    assert not here.has_ended(here)
    assert dataclasses.replace(here, started=here.started - 1).has_ended(here)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        other = dataclasses.replace(here, process=child.pid)
        began = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
        other = dataclasses.replace(other, started=began)
        assert not other.has_ended(here)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert other.has_ended(here)  # nobody has asked yet how it ended
    assert other.has_ended(here)


def test_nothing_is_known_where_proc_shows_other_numbers_than_this_process_has(monkeypatch):
    elsewhere = RankProcess.here()
    number = 2**22 + 1  # no process has it: as under `unshare --pid` without a /proc of its own
    monkeypatch.setattr(os, "getpid", lambda: number)
    here = RankProcess.here()
    assert here.process == 0
    assert not dataclasses.replace(elsewhere, started=elsewhere.started - 1).has_ended(here)


def test_nothing_is_said_of_a_process_that_cannot_be_seen():
    here = RankProcess.here()
    gone = dataclasses.replace(here, started=here.started - 1)
    assert not dataclasses.replace(gone, boot="another").has_ended(here)
    assert not dataclasses.replace(gone, process_names="pid:[1]").has_ended(here)
    assert not RankProcess(here.boot, here.process_names).has_ended(here)
