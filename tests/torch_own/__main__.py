"""`make test-torch`, or `python -m tests.torch_own [WORD...]`: torch's own tests, or those whose name has one of the words.

The tests are those of the installed torch, in `torch.testing._internal.distributed.distributed_test`. They run over Gloo
first; what Gloo passes runs over samebits too. Exit code 0 when samebits passes all of that. Output goes to
`build/torch-own/`, and so does the package that torch's tests need (expecttest).
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO

from tests.support.environment import ROOT
from tests.torch_own.tally import Outcome, Tally, chosen, passed

OUTPUT = ROOT / "build" / "torch-own"
PACKAGES = OUTPUT / "packages"
WANTED = "expecttest==0.3.0"
RANKS = 4
"""Some tests ask for 4 or for an even number."""
TEST_S = 60
"""For one test; then its ranks are asked for their stacks and ended."""
SILENCE_S = 3 * TEST_S
"""For a process that answers nothing, its import of torch included; then it is killed, and another goes on."""


def run(backend: str, names: Sequence[str], ranks: int) -> dict[str, Outcome]:
    """Run these tests over a backend, in as many processes as it takes."""
    outcomes: dict[str, Outcome] = {}
    with (OUTPUT / f"{backend}.log").open("w") as log:
        while rest := names[len(outcomes) :]:
            hung = True
            for line in answers(backend, rest, ranks, log):
                if not line:
                    hung = False
                    break
                name = names[len(outcomes)]
                outcomes[name] = Outcome(**json.loads(line))
                print(f"{backend:<10}{outcomes[name].state:<8}{outcomes[name].seconds:6.1f} s  {name}", flush=True)
            if len(outcomes) < len(names):
                outcomes[names[len(outcomes)]] = Outcome("hung" if hung else "died")
    return outcomes


def answers(backend: str, names: Sequence[str], ranks: int, log: IO[str]) -> Iterator[str]:
    """A process's answers, line by line, an empty one at its end; after a silence, it is ended with its ranks."""
    reading, writing = os.pipe()
    variables = {
        **os.environ, "WORLD_SIZE": str(ranks), "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_S), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (PACKAGES, ROOT / "src"))),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.torch_own.side", backend, str(writing)], cwd=ROOT, env=variables,
        stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, text=True, pass_fds=[writing], start_new_session=True,
    )  # fmt: skip
    os.close(writing)
    try:
        with process.stdin as asking:
            asking.write(" ".join(names))
        with os.fdopen(reading) as told:
            while select.select([told], [], [], SILENCE_S)[0]:
                line = told.readline()
                yield line
                if not line:
                    return
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the number is still its own
        process.wait()


def main(arguments: Sequence[str]) -> int:
    """0 when samebits passes what Gloo passes."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch_own", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only tests whose name has one of these words")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"[{RANKS}]")
    asked = parser.parse_args(arguments)
    if not PACKAGES.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(PACKAGES), WANTED], check=True)
    with (OUTPUT / "names.log").open("w") as log:
        kinds = json.loads(next(answers("gloo", [], asked.ranks, log), "") or "{}")
    names = chosen(list(kinds), asked.words)
    if not names:
        parser.error(f"no test has any of these words: {' '.join(asked.words)}" if kinds else f"see {log.name}")
    gloo = run("gloo", names, asked.ranks)
    ours = run("samebits", passed(gloo), asked.ranks)
    tally = Tally(gloo, ours, frozenset(name for name in names if kinds[name]))
    version = importlib.metadata.version("torch")
    print(f"{dt.datetime.now(dt.UTC):%Y-%m-%d}: torch {version}, {asked.ranks} ranks, {len(names)} tests")
    print(tally.table())
    return 1 if tally.only_we_fail() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
