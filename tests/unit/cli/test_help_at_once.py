"""`--help` of every command imports what parsing needs, and no launcher, verification, picture or torch."""

import subprocess
import sys

import pytest

from samebits.cli.main import COMMANDS

WORK = ("samebits.launcher.launcher", "samebits.launcher.trials", "samebits.verify.verify", "samebits.bench.bench")
HEAVY = ("samebits.rank", "samebits.show.server", "torch", "numpy", "rich.console", "ssl", "http.server")
PROGRAM = """
import sys
sys.argv = ["samebits", *sys.argv[1:]]
from samebits.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS), ("checkpoint", "ls"), ("checkpoint", "export")])
def test_help_imports_nothing_of_the_work(words):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Usage: samebits" in done.stdout
    loaded = done.stderr.split()
    assert [name for name in loaded if name.startswith((*WORK, *HEAVY))] == []
