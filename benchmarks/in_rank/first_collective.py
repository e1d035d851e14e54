"""A script of lockstep's: joins, adds a number over the ranks, and notes when."""

import sys
import time
from pathlib import Path

import lockstep

run = lockstep.init()
assert run.sum(1) == run.world_size
Path(sys.argv[1], str(run.rank)).write_text(str(time.monotonic_ns()))
