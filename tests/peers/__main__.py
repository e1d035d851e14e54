"""`make test-peers`, or `python -m tests.peers [WORD...]`: all programs, or those whose title has one of the words.

An environment is made in `build/peers/` with the versions of `tests/peers/constraints.txt`, never with torchvision.
Each program runs on two ranks under torchrun, `samebits run` and `samebits run --backend samebits`, in a folder of its
own, and offline. What our scripts compute must agree between the three.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.peers.outcome import Outcome, all_good, read, table
from tests.peers.programs import PROGRAMS, Program
from tests.support.environment import ROOT, Environment, name_of, pinned, requirements

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
PEERS = ("accelerate", "lightning", "torchdata", "transformers")
LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    "samebits run": ("samebits", "run", "-n", "2", "-q"),
    "samebits run --backend samebits": ("samebits", "run", "-n", "2", "-q", "--backend", "samebits"),
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
ENOUGH_S = 300.0


def environment() -> Environment:
    """Make it where it is missing or has other versions."""
    place = Environment(ROOT / "build" / "peers")
    wanted = pinned(CONSTRAINTS)
    made = place.folder / "made.txt"
    if not made.exists() or made.read_text().splitlines() != wanted:
        place.make()
        (torch,) = (line for line in wanted if name_of(line) == "torch")
        place.install([torch, *PEERS, *requirements()], wanted)
        made.write_text("\n".join(wanted))
    return place


def run(program: Program, launcher: Sequence[str], place: Environment) -> Outcome:
    """Run one program under one launcher; if it takes too long, it is ended with everything that it started."""
    variables: Mapping[str, str] = {**os.environ, **OFFLINE, **program.variables}
    command = [place.python, "-m", *launcher, *program.words]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="samebits-peer-") as folder:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=ENOUGH_S)
        except subprocess.TimeoutExpired:
            _end(process)
            return Outcome(time.monotonic() - began, trouble=f"not at its end after {ENOUGH_S:.0f} s")
    return read(process.returncode, out, err, time.monotonic() - began, program.tells)


def _end(process: subprocess.Popen[str]) -> None:
    """Both launchers end their ranks when asked to end; one that is killed after a minute may leave some."""
    process.terminate()
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def versions(place: Environment) -> str:
    """`2026-11-22: Python 3.11.7, torch 2.13.0, ...`."""
    names = ("torch", *PEERS)
    ask = f"import importlib.metadata as m; print(', '.join(f'{{n}} {{m.version(n)}}' for n in {names!r}))"
    told = subprocess.run([place.python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%d}: Python {sys.version.split()[0]}, {told}"


def main(arguments: Sequence[str]) -> int:
    """0 when everything went well everywhere."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only programs whose title has one of these words")
    words = parser.parse_args(arguments).words
    chosen = [each for each in PROGRAMS if not words or any(word.lower() in each.title.lower() for word in words)]
    if not chosen:
        titles = "; ".join(each.title for each in PROGRAMS)
        parser.error(f"no title has any of these words: {' '.join(words)}. There are: {titles}.")
    place = environment()
    rows = {}
    for program in chosen:
        print(f"--- {program.title}", flush=True)
        rows[program.title] = {name: run(program, words, place) for name, words in LAUNCHERS.items()}
    print(versions(place))
    print(table(rows, tuple(LAUNCHERS)))
    return 0 if all_good(rows, next(iter(LAUNCHERS))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
