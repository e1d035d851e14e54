"""Every operator of one step, lane by lane, for `samebits verify --where`: `witness.operators` writes the lines.

A place is written as `1 3`: behind the beginning of the step's first pass, in lane 3; `1 -1` is the body behind that pass, which
is the same on every rank. What samebits itself computes is left out, so nothing in a lane depends on the number of ranks but
what the script makes depend on it.

Runs in: the main thread of each rank.
"""

from __future__ import annotations

from pathlib import Path

import samebits
from samebits.protocol.environment import RankEnvironment
from samebits.protocol.recording import BODY
from samebits.protocol.run_folder import RunFolder
from samebits.rank.position.moment import LoopPosition, Region
from samebits.witness.operators import Operators, keep_compiled_regions

OWN = Path(samebits.__file__).parent


class StepOperators:
    """Records the operators of one step.

    Args:
        folder: where the files of this rank go.
        rank: its number.
        step: among those of all runs that the script makes.
        values_of: the operator whose results are wanted: its place and its number there.
    """

    def __init__(self, folder: Path, rank: int, step: int, values_of: tuple[str, int] | None) -> None:
        self._folder, self._rank, self.step, self._values_of = folder, rank, step, values_of
        self.passes = 0
        """Passes of the step that have begun, with those that only look."""
        self._open: Operators | None = None

    def begin(self, position: LoopPosition) -> None:
        """The step begins."""
        self.passes = 0

        def place() -> str | None:
            if position.region is Region.LANE:
                return f"{self.passes} {position.lane}"
            return f"{self.passes} {BODY}" if position.region is Region.STEP else None

        self._open = Operators(
            self._folder, self._rank, self._values_of, place, own=[f"{OWN}/"], fetching=[f"{OWN / 'rank' / 'data'}/"]
        )
        self._open.begin()

    def end(self) -> None:
        """The step is over; the lines are written."""
        if self._open is not None:
            self._open.end()
        self._open = None


def make_operators(environment: RankEnvironment, folder: RunFolder | None) -> StepOperators | None:
    """What records them, where they are wanted."""
    wanted = environment.settings.evidence if environment.settings else {}
    if folder is None or "operators_of" not in wanted:
        return None
    keep_compiled_regions()
    rank, values_of = environment.position.rank, wanted.get("values_of")
    place = (str(values_of[0]), int(values_of[1])) if values_of is not None else None
    return StepOperators(folder.evidence(rank).parent, rank, int(wanted["operators_of"]), place)
