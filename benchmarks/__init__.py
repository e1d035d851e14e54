"""Speed, always as a ratio: both sides in the same processes, turn by turn, beside the limit of this machine.

python -m benchmarks --help     the parts; each row names the line of the scoreboard that it belongs to
python -m benchmarks steps --picture steps.png
python -m benchmarks.notes.figure    the note's comparison: naive split, one device, pipeline, and a sweep
"""

import sys

from benchmarks.ending import imports_quietly

imports_quietly(sys.argv[0])
