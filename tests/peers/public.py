"""`python -m tests.peers.public SCRIPT...`: public scripts of Accelerate on 1, 2 and 4 processes, with one changed import.

In an environment with datasets, evaluate and transformers, for scripts that were fetched elsewhere and are never committed.
What they download is replaced by `stand_in.py`. Beside them runs Accelerate's own class on 4 processes under torchrun.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
OURS = "from lockstep.integrations.accelerate import Accelerator"
IMPORT = re.compile(r"^from accelerate import (.*)\bAccelerator\b(?:, )?(.*)$", re.MULTILINE)
ENOUGH_S = 120.0


def changed(text: str) -> str:
    """The script with lockstep's Accelerator."""

    def replaced(found: re.Match[str]) -> str:
        rest = (found[1] + found[2]).strip(", ")
        return f"from accelerate import {rest}\n{OURS}" if rest else OURS

    return IMPORT.sub(replaced, text)


def run(folder: Path, text: str, *launcher: str) -> str:
    """The hash and the size of the weights that it leaves, or how it ended."""
    script = folder / "script.py"
    script.write_text(f"import stand_in\n{text}")
    path = os.pathsep.join([str(HERE), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    variables = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "HF_HUB_OFFLINE": "1",
    }
    words = [sys.executable, "-m", *launcher, str(script)]
    # A session of its own: a launcher that is ended may leave its ranks.
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=ENOUGH_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"not at its end after {ENOUGH_S:.0f} s"
    if process.returncode:
        (told,) = re.findall(r"^(?:FAILED|error:).*", err, re.MULTILINE)[:1] or [err[-200:]]
        return f"exit code {process.returncode}: {told}"
    return " ".join(re.findall(r"^weights (\S+) (\S+)", out, re.MULTILINE)[-1])


def main(scripts: list[str]) -> int:
    """0 when each script has the same weights everywhere, or is refused everywhere."""
    apart = False
    for script in map(Path, scripts):
        text, found = script.read_text(), {}
        with tempfile.TemporaryDirectory() as folder:
            for ranks in ("1", "2", "4"):
                found[ranks] = run(Path(folder), changed(text), "lockstep", "run", "-q", "-n", ranks)
            plain = run(Path(folder), text, "torch.distributed.run", "--nproc-per-node", "4")
        same = len(set(found.values())) == 1
        apart |= not same and not all("exit code 2" in one for one in found.values())
        print(f"{script.stem}: {'equal' if same else 'apart'}: {found}; plain: {plain}", flush=True)
    return int(apart)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
