"""`python -m tests.peers.public SCRIPT...`: public scripts of Accelerate on 1, 2 and 4 processes, and after a kill, with one changed import.

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
import uuid
from contextlib import suppress
from pathlib import Path

from tests.support.launching import MARK, marked_processes

ROOT = Path(__file__).parents[2]
OURS = "from samebits.integrations.accelerate import Accelerator"
IMPORT = re.compile(r"^from accelerate import (.*)\bAccelerator\b(?:, )?(.*)$", re.MULTILINE)
ENOUGH_S = 60.0


def changed(text: str) -> str:
    """The script with samebits's Accelerator."""

    def replaced(found: re.Match[str]) -> str:
        rest = (found[1] + found[2]).strip(", ")
        return f"from accelerate import {rest}\n{OURS}" if rest else OURS

    return IMPORT.sub(replaced, text)


def ended(words: list[str], folder: Path, variables: dict[str, str], limit_s: float) -> tuple[int | None, str, str]:
    """Exit code, or None after `limit_s`, and what was printed; nothing that was started outlives it."""
    mark = uuid.uuid4().hex
    paths = [folder / f"{mark}.{name}" for name in ("out", "err")]
    # Files: a rank that its launcher has lost would hold a pipe open.
    with paths[0].open("w") as out, paths[1].open("w") as err:
        process = subprocess.Popen(words, cwd=folder, env={**variables, MARK: mark}, stdout=out, stderr=err)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        for pid in marked_processes(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    return code, *(path.read_text(errors="replace") for path in paths)


def run(folder: Path, text: str, *launcher: str, **more: str) -> str:
    """The hash and the size of the weights that it leaves, or how it ended."""
    script = folder / "script.py"
    script.write_text(f"import tests.peers.stand_in\n{text}")
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    variables = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "HF_HUB_OFFLINE": "1",
        **more,
    }
    code, out, err = ended([sys.executable, "-m", *launcher, str(script)], folder, variables, ENOUGH_S)
    if code is None:
        return f"not at its end after {ENOUGH_S:.0f} s"
    if code:
        (told,) = re.findall(r"^(?:FAILED|error:).*", err, re.MULTILINE)[:1] or [err[-200:]]
        return f"exit code {code}: {told}"
    return " ".join(re.findall(r"^weights (\S+) (\S+)", out, re.MULTILINE)[-1])


def main(scripts: list[str]) -> int:
    """0 when each script has the same weights everywhere, or is refused everywhere."""
    apart = False
    for script in map(Path, scripts):
        text, found = script.read_text(), {}
        with tempfile.TemporaryDirectory() as folder:
            for ranks in ("1", "2", "4"):
                found[ranks] = run(Path(folder), changed(text), "samebits", "run", "-q", "-n", ranks)
            found["killed"] = run(Path(folder), changed(text), "samebits", "run", "-q", "-n", "2", KILL_AT="9")
            plain = run(Path(folder), text, "torch.distributed.run", "--nproc-per-node", "4")
        same = len(set(found.values())) == 1
        apart |= not same and not all("exit code 2" in one for one in found.values())
        print(f"{script.stem}: {'equal' if same else 'apart'}: {found}; plain: {plain}", flush=True)
    return int(apart)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
