"""The lines of metrics.jsonl that earlier ranks wrote, when the launcher has started all ranks again.

They wrote about steps that are trained again from the newest state, or from the beginning. Where the run goes on is
known when it loads a state, at the latest at its first step. Then the lines of later steps are removed, so that every
step is there once. The file is replaced as a whole; until then it holds all lines.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from lockstep.machine.growing_time import go_on_from
from lockstep.machine.regular_file import read_regular
from lockstep.protocol.run_folder import write_private
from lockstep.rank.run.position.step_timer import Ledger

_settled: set[Path] = set()
"""The files that were dealt with: what a second `lockstep.init` of this process finds there is its own."""


class EarlierLines:
    """The first `size_bytes` of the file; nothing where that is 0.

    Args:
        path: metrics.jsonl; None on ranks that do not write it.
        size_bytes: how much of it earlier ranks wrote.
        ledger: it learns what cannot be written.
    """

    def __init__(self, path: Path | None, size_bytes: int, ledger: Ledger) -> None:
        self._path = path if size_bytes and path not in _settled else None
        self._size, self._ledger = size_bytes, ledger
        self.has_mine = False
        """Whether they have what this start wrote so far, on its way to a state of the same run."""

    def keep_until(self, step: int, saved_s: float) -> None:
        """Keep those up to `step`, after which a state was saved at `saved_s` (growing_time); the first call counts."""
        go_on_from(saved_s, step)
        if (path := self._path) is None:
            return
        self._path = None
        _settled.add(path)
        try:
            data = read_regular(path)
            earlier = data[: self._size].decode(errors="replace").splitlines(keepends=True)
            mine = "" if self.has_mine else data[self._size :].decode(errors="replace")
            write_private(path, "".join([*kept(earlier, step, saved_s), mine]))
        except OSError as error:
            self._ledger.lost(f"{path.name} cannot be written again ({error.strerror}): it has steps twice")

    def keep_none(self) -> None:
        """The run begins from its beginning."""
        self.keep_until(0, 0.0)


def kept(lines: list[str], step: int, saved_s: float) -> list[str]:
    """The lines that a run keeps when it goes on from the state after `step`, which was saved at `saved_s`."""
    return [line for line in lines if _counts(line, step, saved_s)]


def _counts(line: str, step: int, saved_s: float) -> bool:
    with suppress(ValueError, KeyError, TypeError):
        told = json.loads(line)
        return bool(told["step"] < step or (told["step"] == step and told["time"] <= saved_s))
    return False
