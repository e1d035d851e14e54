"""Runs every check in other processes, natively or as another CPU, and compares what they computed.

    python -m tests.portable.operators run native.json
    python -m tests.portable.operators run haswell.json --cpu Haswell
    python -m tests.portable.operators compare native.json haswell.json
    python -m tests.portable.operators cover native.json haswell.json rome.json

A check's inputs are hashed too: where they differ, a check says nothing about its operator. `--unpinned` leaves the
portable mode's environment away, to see that the emulated CPU would have given other bits.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from samebits.protocol.portable import BLAS, HELD, LIBRARY, NUMPY, PRELOAD, portable_variables
from tests.portable.verdict import Results, compare, verdict

ROOT = Path(__file__).parents[2]
COVERED = ROOT / "src" / "samebits" / "rank" / "portable" / "covered.txt"
RECORDED = Path(__file__).with_name("recorded.json")
LONGEST_S = {False: 20, True: 90}
"""For one operator and dtype: natively, and emulated."""
THREADS = "CHECK_THREADS"
"""Of torch, in a process that checks; one where it is not set."""
EMULATOR = os.environ.get("CHECK_EMULATOR", "qemu-x86_64")
STARTS_S = 240
"""Until a process is ready for its first check."""


def environment(*, portable: bool) -> dict[str, str]:
    """What a process that checks is started with."""
    pinned = {*HELD, NUMPY, PRELOAD, BLAS}
    rest = {name: value for name, value in os.environ.items() if name not in pinned} | {
        "OMP_NUM_THREADS": os.environ.get(THREADS, "1"),
        "OMP_WAIT_POLICY": "passive",
        "PYTHONHASHSEED": "0",
    }
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    more = {name: value for name, value in portable_variables({}).items() if name != PRELOAD} if portable else {}
    return rest | more | {"PYTHONPATH": path}


def command(cpu: str | None, *, portable: bool) -> list[str]:
    """How Python is started, with the library between torch and MKL."""
    preload = [f"{PRELOAD}={LIBRARY}"] if portable else []
    if cpu is None:
        return ["env", *preload, sys.executable]
    interpreter = str(Path(sys.executable).resolve())
    sets = [word for each in preload for word in ("-E", each)]
    return ["nice", "-n", "10", EMULATOR, *sets, "-cpu", cpu, "-0", sys.executable, interpreter]


# In the process that checks.


def all_cases() -> dict[str, Any]:
    """Every case by name."""
    from tests.portable import listed, more, training

    return {**training.cases(), **more.cases(), **listed.cases()}


def prepare() -> None:
    """Set torch as a rank of the portable mode does."""
    import torch

    from samebits.rank.portable.operators import lift
    from samebits.rank.portable.process import hold

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    if BLAS in os.environ:
        hold()
        lift()  # a check that calls what is not covered tells whether it could be


def work(names: Sequence[str]) -> None:
    """Run these cases and print a line of JSON before and after each."""
    warnings.simplefilter("ignore")
    from tests.portable.recording import Recorder, digest

    prepare()
    cases = all_cases()
    recorder = Recorder()
    recorder.start()
    print(json.dumps({"unwrapped": recorder.unwrapped}), flush=True)
    for name in names:
        print(json.dumps({"start": name}), flush=True)
        print(json.dumps({"case": name, "checks": list(_case(cases[name], recorder, digest))}), flush=True)


def _case(make: Any, recorder: Any, digest: Any) -> Iterator[list[Any]]:
    try:
        for inputs, compute in make():
            given = digest(inputs)
            recorder.ran.clear()
            try:
                outputs = compute()
            except Exception as failure:
                yield [given, f"error: {type(failure).__name__}: {str(failure)[:120]}", []]
                continue
            ran = sorted(recorder.ran)
            yield [given, digest(outputs), ran]
    except Exception as failure:
        yield ["", f"no sample: {type(failure).__name__}: {str(failure)[:120]}", []]


# Outside.


def run(out: Path, cpu: str | None, names: Sequence[str], *, portable: bool) -> None:
    """Check in processes that start again after one that crashed or took too long. Results that are there are kept."""
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    left = [name for name in names if name not in results]
    began = time.monotonic()
    while left:
        left = _one_process(results, left, cpu, out, portable=portable)
        out.write_text(json.dumps(results, indent=0))
    print(f"{len(results)} cases, {sum(map(len, results.values()))} checks in {time.monotonic() - began:.0f} s")


def _one_process(results: dict[str, Any], names: list[str], cpu: str | None, out: Path, *, portable: bool) -> list[str]:
    """The names that are left."""
    process = subprocess.Popen(
        [*command(cpu, portable=portable), "-W", "ignore", "-m", "tests.portable.operators", "work"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(portable=portable), cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n".join(names).encode())
    process.stdin.close()
    current = None
    for line in _lines(process, LONGEST_S[cpu is not None]):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        current = said.get("start", current)
        if said.get("unwrapped"):
            print("not wrapped:", *said["unwrapped"])
        if "case" in said:
            results[said["case"]] = said["checks"]
            if len(results) % 200 == 0:
                out.write_text(json.dumps(results, indent=0))
    process.stdout.close()
    code = process.wait()
    left = [name for name in names if name not in results]
    if left and current not in (None, *results):
        results[current] = [["", f"crashed: {code}", []]]
        print(f"{current}: {code}", flush=True)
        left.remove(current)
    elif left and current is None:
        raise SystemExit(f"the process did not start: {code}")
    return left


def _lines(process: Any, longest_s: float) -> Iterator[bytes]:
    """What it prints, until it ends or is silent for too long."""
    buffer, limit = b"", STARTS_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(limit):
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                return
            *lines, buffer = (buffer + piece).split(b"\n")
            yield from lines
            limit = longest_s
    os.killpg(process.pid, signal.SIGKILL)


def record(native: Results, every: int) -> None:
    """Write down some of the results, for the test that looks whether this machine gives them too."""
    import torch

    some = {name: [[given, result, []] for given, result, _ in native[name]] for name in [*native][::every]}
    there = {"torch": torch.__version__.partition("+")[0], "checks": some}
    RECORDED.write_text(json.dumps(there, indent=0) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "work", "compare", "cover", "record", "names"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--cpu", help="one of qemu's")
    parser.add_argument("--unpinned", action="store_true")
    parser.add_argument("--only", help="cases whose names hold this")
    parser.add_argument("--every", type=int, default=1, help="one case in so many")
    parser.add_argument("--start", type=int, default=0, help="the first of those")
    given = parser.parse_args()
    if given.what == "work":
        work(sys.stdin.read().split("\n"))
        return
    if given.what in ("run", "names"):
        listing = [name for name in all_cases() if not given.only or given.only in name][given.start :: given.every]
        if given.what == "names":
            print("\n".join(listing))
            return
        run(given.files[0], given.cpu, listing, portable=not given.unpinned)
        return
    results = [json.loads(path.read_text()) for path in given.files]
    for path, other in zip(given.files[1:], results[1:], strict=True):
        kinds = compare(results[0], other)
        print(path, {kind: len(checks) for kind, checks in kinds.items()})
        for kind in ("differs", "differs in NaN", "fails in one", "inputs differ"):
            for name, _ in kinds.get(kind, []):
                print(f"  {kind}: {name}")
    if given.what == "record":
        record(results[0], given.every)
    if given.what == "cover":
        found = verdict(results[0], results[1:])
        COVERED.write_text("\n".join(found.covered) + "\n")
        print(f"{len(found.covered)} covered; to blame:")
        for word, checks in sorted(found.blamed.items()):
            print(f"  {word}: {len(checks)} checks ({', '.join(checks[:3])})")


if __name__ == "__main__":
    main()
