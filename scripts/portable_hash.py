"""One line for the table of docs/hashes.md: what this CPU comes to under numerics="portable".

    python scripts/portable_hash.py

The known answers, then two epochs of examples/digits.py; half a minute. Where SAMEBITS_PYTHON names a wrapper that starts an emulator,
the line has the wrapper's name. Exit code 1 when an answer differs or is not recorded for this torch, or when there were no bits.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samebits.machine.cores import model_and_instructions
from samebits.machine.processes import interpreter
from samebits.protocol.portable import LIBRARY

ANSWERS = LIBRARY.parent / "rank" / "portable" / "known_answers.json"
DIGITS = Path(__file__).parents[1] / "examples/digits.py"
LENGTH = 12
"""Hexadecimal digits, as many as a run prints."""


def table_line(cpu: tuple[str, str], computed: Mapping[str, Any], known: Mapping[str, str], bits: str) -> str:
    """A row of the table.

    Args:
        cpu: its name, and how it computed.
        computed: what `python -m samebits.rank.portable` prints.
        known: the answers that are recorded for its torch.
        bits: of the digits; empty where they were not trained.
    """
    found: Mapping[str, str] = computed["answers"]
    wrong = differing(found, known)
    answers = f"{len(found) - len(wrong)} of {len(found)}" if known else "none recorded"
    answers += f"; not {', '.join(wrong)}" if known and wrong else ""
    libc = str(computed["libc"]).removeprefix("glibc ")
    return f"| {' | '.join((*cpu, computed['torch'], libc, answers, bits or 'not run'))} |"


def differing(found: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """The names of the answers that are not the recorded ones."""
    return [name for name, answer in found.items() if known.get(name) != answer]


def processor() -> tuple[str, str]:
    """Its name, with what tells apart those that a virtual machine calls by one; and whether it is a real one."""
    if wrapper := os.environ.get("SAMEBITS_PYTHON"):
        return Path(wrapper).stem, "emulated"
    model, instructions = model_and_instructions()
    numbers = dict(re.findall(r"^(cpu family|model)\s*: (\d+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    exact = f", family {numbers['cpu family']} model {numbers['model']}" if len(numbers) == 2 else ""
    return f"{model or 'unknown'}{exact} ({instructions.replace(' ', ', ')})", "native"


def printed(python: str, *words: str) -> str:
    """What a program of ours writes to standard output; it ends this one with its last line where it fails."""
    done = subprocess.run([python, "-m", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip().rpartition("\n")[2] or f"{' '.join(words)} ended with {done.returncode}")
    return done.stdout


def trained_bits() -> str:
    """The beginning of the hash of the digits' weights after two epochs."""
    with tempfile.TemporaryDirectory() as folder:
        run = ("run", "--numerics", "portable", "-n", "1", "-q", "--log-dir", folder, str(DIGITS), "--epochs", "2")
        printed(sys.executable, "samebits", *run)
        (summary,) = Path(folder).glob("*/summary.json")
        bits: str = json.loads(summary.read_text())["bits"]
    return bits.removeprefix("sha256:")[:LENGTH]


def main() -> int:
    """Print the line."""
    computed = json.loads(printed(interpreter(), "samebits.rank.portable"))
    known = json.loads(ANSWERS.read_text()).get(computed["torch"], {})
    is_right = not differing(computed["answers"], known)
    print(table_line(processor(), computed, known, trained_bits() if is_right else ""))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
