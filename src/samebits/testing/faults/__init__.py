"""Scripted faults: something happens to one rank at one step, once, and leaves a file that says so.

    from samebits.testing import faults

    for step, batch in enumerate(loader, 1):
        if faults.at(step) == "skip":          # does nothing unless SAMEBITS_FAULTS says so
            continue
        ...

    SAMEBITS_FAULTS="stop rank=1 step=5" SAMEBITS_FAULTS_FOLDER=/tmp/it samebits run -n 2 train.py

Any launcher that sets RANK will do. A rank that starts again and comes to the same step finds the file and continues. In a test:

    subprocess.run(command, env={**os.environ, **faults.variables("kill rank=1 step=5", tmp_path)})
    (event,) = faults.assert_fired("kill rank=1 step=5", tmp_path)

text -> what happens to whom, when      plan
-> once, with a file as proof           firing
-> the effect                           acts
"""

from __future__ import annotations

from samebits.testing.faults.firing import Fired, assert_fired, at, fired, sample, variables
from samebits.testing.faults.plan import KINDS, Fault, Plan

__all__ = ["KINDS", "Fault", "Fired", "Plan", "assert_fired", "at", "fired", "sample", "variables"]
