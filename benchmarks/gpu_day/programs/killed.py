"""`kill -9` of a rank in mid-step: what `samebits run` says, and whether the run goes on with the same bits.

`killed.py stop` ends the run at the first lost rank; `killed.py replace` goes on.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from samebits.testing import faults

TRAINING = Path(__file__).with_name("training.py")
PLAN = "kill rank=1 step=12"


def run(policy, *more, **variables):
    words = [
        sys.executable,
        "-m",
        "samebits",
        "run",
        "--device",
        "cuda",
        "-n",
        "2",
        "--recover",
        "off" if policy == "stop" else "auto",
        *more,
        str(TRAINING),
    ]
    began = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    lines = [line for line in done.stdout.splitlines() if line.startswith("loss ")]
    return done, (lines or [""])[-1], time.monotonic() - began


def main():
    policy = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        done, loss, took_s = run(policy, **faults.variables(PLAN, folder))
        faults.assert_fired(PLAN, folder)
    told = [line for line in done.stderr.splitlines() if "rank 1" in line]
    is_named = any("signal 9" in line or "SIGKILL" in line for line in told)
    says = (told or [done.stderr.strip()[-150:]])[0]
    says = says[max(says.find("rank 1"), 0) :].strip()
    if policy == "stop":
        ok = done.returncode != 0 and is_named
    else:
        undisturbed = run(policy)[1]
        ok = done.returncode == 0 and is_named and loss == undisturbed != ""
        says += f"; {'same bits' if loss == undisturbed else f'OTHER BITS: {loss}, not {undisturbed}'} as undisturbed"
    print(json.dumps({"ok": ok, "says": says, "seconds": took_s, "exit_code": done.returncode}))


if __name__ == "__main__":
    main()
