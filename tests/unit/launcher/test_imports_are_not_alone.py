"""Ranks that import are not yet training alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from samebits.launcher.diagnosis.probe import read_stack
from samebits.launcher.supervise.observer import STILL_ALONE_S, Observer
from samebits.machine.stacks import refusal

SLOW = "print('ready', flush=True)\nimport time\ntime.sleep(100)\n"


@pytest.mark.skipif(bool(refusal()), reason="stacks cannot be read here")
@pytest.mark.parametrize(("code", "is_warned"), [("import slow", False), (SLOW, True)])
def test_the_warning_counts_from_the_end_of_the_imports(tmp_path: Path, code: str, is_warned: bool) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            rank.stdout.readline()
            stack = read_stack(rank.pid)
            assert stack is not None
            assert stack.is_importing is not is_warned
            said: list[object] = []
            observer = SimpleNamespace(
                _warn_alone_at=STILL_ALONE_S,
                _journals={0: SimpleNamespace(waiting=lambda: None)},
                _saying=SimpleNamespace(line=said.append),
                _request=SimpleNamespace(placement=SimpleNamespace(ranks=2)),
                _pids=[rank.pid],
                has_begun=True,
                met=False,
                paused=False,
            )
            Observer.warn_alone(observer, STILL_ALONE_S + 1, joined=False)  # type: ignore[arg-type]
            assert len(said) == is_warned
        finally:
            rank.kill()


class Pids(list[int]):
    """Those of ranks; it notes whether anybody asks for them."""

    is_read = False

    def __iter__(self) -> Iterator[int]:
        self.is_read = True
        return super().__iter__()


@pytest.mark.parametrize("joined", [True, False])
def test_no_stack_is_read_of_ranks_that_have_joined(joined: bool) -> None:
    pids, said = Pids(), list[object]()
    observer = SimpleNamespace(
        _warn_alone_at=STILL_ALONE_S,
        _journals={},
        _saying=SimpleNamespace(line=said.append),
        _request=SimpleNamespace(placement=SimpleNamespace(ranks=2)),
        _pids=pids,
        has_begun=True,
        met=False,
        paused=False,
    )
    Observer.warn_alone(observer, STILL_ALONE_S + 1, joined=joined)  # type: ignore[arg-type]
    assert pids.is_read is not joined
    assert len(said) == (not joined)
