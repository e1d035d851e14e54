"""The compiled part, built in the background with what the machine has, into a folder of its own; nothing waits for it.

Once it is there, later tasks find a package of links in front of the checkout's, with the module in it: so a task has it from
its first process to its last, or not at all, and the checkout stays as it was.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu_day.tasks import ROOT

PACKAGE = ROOT / "src" / "samebits"
SCRIPT = """
set -e
cmake -S "$NATIVE" -B . -G Ninja --log-level=WARNING -DSAMEBITS_INPLACE=OFF -DSAMEBITS_TESTS=OFF \
  -DPython_EXECUTABLE="$PYTHON" -Dnanobind_DIR="$("$PYTHON" -m nanobind --cmake_dir)"
cmake --build .
"""


class Building:
    """A build that is under way, or over.

    Args:
        folder: an empty one.
        variables: the environment.
        is_wanted: False where the compiled part is there already.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str], *, is_wanted: bool) -> None:
        self._folder, self._began = folder / "build", time.monotonic()
        self._site = folder / "site"
        self._process: subprocess.Popen[bytes] | None = None
        self.state = "not wanted"
        self.seconds = 0.0
        if is_wanted:
            self._start(variables)

    def _start(self, variables: Mapping[str, str]) -> None:
        self._folder.mkdir()
        beside = str(Path(sys.executable).parent)  # cmake and ninja of an environment
        told = {
            "NATIVE": str(ROOT / "native"),
            "PYTHON": sys.executable,
            "PATH": f"{beside}:{variables.get('PATH', os.defpath)}",
        }
        try:
            with (self._folder / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    ["bash", "-c", SCRIPT], cwd=self._folder, env={**variables, **told}, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            self.state = "under way"
        except OSError as error:
            self.state = f"failed: bash cannot be started: {error.strerror}"

    @property
    def is_under_way(self) -> bool:
        """Whether it still takes processors; looks."""
        if self._process is None or self.state != "under way":
            return False
        if self._process.poll() is None:
            return True
        self.seconds = time.monotonic() - self._began
        found = [*self._folder.glob("_native*.so")]
        if self._process.returncode or not found:
            lines = (self._folder / "log").read_text(errors="replace").strip().splitlines()
            self.state = f"failed: {' | '.join(lines[-5:])}"[:1000]
        else:
            self._link(found[0])
            self.state = "built"
        return False

    def _link(self, module: Path) -> None:
        package = self._site / "samebits"
        package.mkdir(parents=True)
        for each in PACKAGE.iterdir():
            if each.name != "__pycache__" and not each.name.startswith("_native."):
                (package / each.name).symlink_to(each)
        (package / "_native.pyi").symlink_to(PACKAGE / "_native.pyi")
        shutil.copy(module, package)

    @property
    def is_there(self) -> bool:
        """Whether tasks that begin now have the compiled part."""
        return self.state in ("built", "not wanted")

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """The environment of a task that begins now."""
        if self.state != "built":
            return {**given}
        return {**given, "PYTHONPATH": os.pathsep.join(filter(None, [str(self._site), given.get("PYTHONPATH", "")]))}

    def end(self) -> None:
        """Stop it."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
