"""The core of the suite with other versions of torch: `make test-torches`, or `python -m tests.torches [VERSION...]`.

For each version an environment is made in `build/torches/`, checked by `samebits doctor`, tested, and removed. torch
for CUDA brings 3 to 5 GB of packages with it where the index has no CPU build; there are no GPUs in these tests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from samebits.machine.torch_versions import TESTED
from tests.support.environment import ROOT, Environment, pinned, requirements

CORE = (
    "tests/architecture/test_torch_private.py", "tests/contract", "tests/unit", "tests/ranks/rank/process_group",
    "tests/ranks/rank/run/test_compile.py", "tests/ranks/rank/strategy/test_staged.py", "tests/ranks/rank/strategy/test_zero1.py",
    "tests/ranks/test_same_bits.py",
)  # fmt: skip
"""What depends on torch most: arithmetic, transports, equal bits, the compiler, the backend, stages and shares."""

ENOUGH_S = 3600
TEST_S = 600
"""For one test: in torch 2.11 the compiler looks at the machine's instructions anew in each process, for a minute."""
NAMES = "import json; from samebits.machine.torch_private import missing; print(json.dumps(list(map(str, missing(compiler=True)))))"


@dataclass
class Result:
    """How one torch did."""

    version: str
    trouble: str = ""
    """Why there are no numbers; empty where there are."""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    missing: tuple[str, ...] = ()
    """Private names that are not there."""
    healthy: bool = False
    """What the doctor says."""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not self.trouble and self.passed > 0 and not self.failed and not self.missing and self.healthy


def try_version(version: str, tests: Sequence[str], keep: bool) -> Result:
    """Make the environment, look, test, remove."""
    result, began = Result(version), time.monotonic()
    place = Environment(ROOT / "build" / "torches" / version)
    try:
        if not place.folder.exists():
            place.make()
            place.install([f"torch=={version}", *requirements("test")], pinned(ROOT / "constraints.txt", "torch"))
        told = json.loads(_said(place, "-m", "samebits", "doctor", "--json"))
        rows = {row["what"]: row for row in told["rows"]}
        result.healthy = told["ok"] and told["torch"]["misfit"] == "" and rows["compiled part"]["state"] == "ok"
        result.missing = tuple(json.loads(_said(place, "-c", NAMES)))
        result.passed, result.failed, result.skipped = _tested(place, tests)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        result.trouble = f"{type(error).__name__}: {error}"
    finally:
        if not keep:
            shutil.rmtree(place.folder, ignore_errors=True)
    result.seconds = time.monotonic() - began
    return result


def _tested(place: Environment, tests: Sequence[str]) -> tuple[int, int, int]:
    report = place.folder / "report.xml"
    how = ["-n", "2", "--dist", "worksteal", "-m", "not thorough", "--tb", "short", "-q", f"--junitxml={report}"]
    command = [place.python, "-m", "pytest", *how, *tests]
    variables = {**os.environ, "SAMEBITS_TEST_LIMIT_S": str(TEST_S)}
    done = subprocess.run(command, cwd=ROOT, timeout=ENOUGH_S, check=False, stdin=subprocess.DEVNULL, env=variables)
    if done.returncode not in (0, 1):
        raise ValueError(f"pytest ended with exit code {done.returncode}")
    return counts(report.read_text())


def _said(place: Environment, *arguments: str) -> str:
    """The last line of what a program says, whatever its exit code."""
    done = subprocess.run(
        [place.python, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    lines = done.stdout.splitlines()
    if not lines:
        raise ValueError(done.stderr[-2000:])
    return lines[-1]


def counts(report: str) -> tuple[int, int, int]:
    """Passed, failed (errors too) and skipped, from pytest's report in JUnit's form."""
    suites = list(ET.fromstring(report).iter("testsuite"))
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return tests - failures - errors - skipped, failures + errors, skipped


def table(results: Sequence[Result]) -> str:
    """A line for each version."""
    lines = [f"{'torch':<8} {'passed':>7} {'failed':>7} {'skipped':>8} {'minutes':>8}  names missing, doctor"]
    for each in results:
        if each.trouble:
            lines.append(f"{each.version:<8} {each.trouble}")
            continue
        found = ", ".join(each.missing) or "none"
        lines.append(
            f"{each.version:<8} {each.passed:>7} {each.failed:>7} {each.skipped:>8} {each.seconds / 60:>8.1f}  "
            f"{found}, {'fit' if each.healthy else 'UNFIT'}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """0 when every version passed everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.torches", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="*", default=TESTED, help=f"versions of torch [{' '.join(TESTED)}]")
    parser.add_argument("--tests", default=" ".join(CORE), help="files and options for pytest [the suite's core]")
    parser.add_argument("--keep", action="store_true", help="keep the environments, and use those that are there")
    asked = parser.parse_args(arguments)
    results = []
    for version in asked.versions:
        print(f"--- torch {version}", flush=True)
        results.append(try_version(version, asked.tests.split(), asked.keep))
    print(table(results))
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
