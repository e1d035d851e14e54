"""What ranks record besides their journals: for `lockstep verify`, and the spans of a trace."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

AT_END = 1 << 62
"""The step number of what was recorded after the last step: above all steps, so that sorting works."""
NAN_MARK = " nan"
"""Follows the hash of a tensor with a NaN in it."""


@dataclass(frozen=True)
class CarriedTensor:
    """The first such tensor on which losses depend."""

    shape: tuple[int, ...]
    dtype: str
    made_at: str
    """`file:line` of the script."""
    used_at: str
    name: str = ""
    """The variable or attribute that holds it, where one was found."""

    @property
    def sentence(self) -> str:
        """What happens, without a capital letter or a full stop."""
        size = " x ".join(map(str, self.shape)) or "a single number"
        called = f" `{self.name}`" if self.name else ""
        return (
            f"a tensor{called} ({self.dtype}, {size}) that one lane made (line {self.made_at}) is used by the next lane (line "
            f"{self.used_at})"
        )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def read_carried_tensor(path: Path) -> CarriedTensor | None:
    """Read what a run wrote; None when its lanes carry nothing on."""
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    return CarriedTensor(**{**record, "shape": tuple(record["shape"])})


# A trace (`--trace`): what began, and when it ended. While none is taken, each place costs one comparison.

MOST_SPANS = 200_000
"""Some 20 MB of a file; a longer trace ends there."""
Span = tuple[str, str, int, int]
"""Track, name, begin, end; times of `time.monotonic_ns`."""


class Spans:
    """Those of this process; any thread may add some."""

    def __init__(self) -> None:
        self._taken: list[Span] | None = None

    def begin(self) -> int:
        """The time now; 0 where no trace is taken."""
        return time.monotonic_ns() if self._taken is not None else 0

    def end(self, track: str, name: str, begin_ns: int) -> None:
        """Add what began at `begin_ns`, a result of `begin`."""
        if begin_ns and self._taken is not None and len(self._taken) < MOST_SPANS:
            self._taken.append((track, name, begin_ns, time.monotonic_ns()))

    def take(self) -> None:
        """From now on a trace is taken."""
        self._taken = []

    def taken(self) -> list[Span]:
        """What was taken; no more is."""
        found, self._taken = self._taken or [], None
        return found


spans = Spans()
