"""Faults that happen to a training under samebits, and to the same training under torchrun.

    make faults                                        all, on 2 and 4 ranks under samebits and on 2 under torchrun: 45 minutes
    python -m benchmarks.faults stopped "state D"      rows whose title has one of these words
    python -m benchmarks.faults --side samebits --json faults.json

A run under torchrun that has not ended 40 s after the fault is ended from here: Gloo waits for 30 minutes. Some rows make
control groups, mounts and network namespaces of their own, and need root. The exit code is 0 when no fault was missed and
every run under samebits ended; those that went on with each sample used once and the bits of an undisturbed one.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.ending import ends_shortly
from benchmarks.faults.catalogue import ELSEWHERE, NOT_HERE, ROWS, Row
from benchmarks.faults.outcome import Notes, Outcome
from benchmarks.faults.table import line, table
from benchmarks.faults.trial import SAMEBITS, TORCHRUN, Trial

RANKS = {SAMEBITS: (2, 4), TORCHRUN: (2,)}
SIDES = {"samebits": SAMEBITS, "torchrun": TORCHRUN}
UNDISTURBED = Row("undisturbed", "", "")


@ends_shortly
def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only rows whose title has one of these words")
    parser.add_argument("--side", choices=SIDES, help="only this one")
    parser.add_argument("--ranks", type=int, help="only on this many")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes there too")
    parser.add_argument("--read", type=Path, metavar="FILE", nargs="+", help="run nothing: the table of such files")
    options = parser.parse_args()
    rows = [
        row for row in ROWS if not options.words or any(word.lower() in row.title.lower() for word in options.words)
    ]
    if not rows:
        parser.error(f"no title has any of these words. There are: {'; '.join(row.title for row in ROWS)}.")
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # so that a trial removes what it has started
    outcomes: list[Outcome] = []
    for file in options.read or ():
        outcomes += [Outcome(**told) for told in json.loads(file.read_text())]
    for side in [] if options.read else [SIDES[options.side]] if options.side else [SAMEBITS, TORCHRUN]:
        for ranks in RANKS[side] if options.ranks is None else (options.ranks,):
            outcomes += _run(rows, side, ranks)
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    print(f"\n{dt.datetime.now(dt.UTC):%Y-%m-%d}, load {os.getloadavg()[2]:.1f}\n\n{table(outcomes, SAMEBITS)}")
    print("\n".join(["", *(f"not tried: {what}: {why}" for what, why in NOT_HERE.items())]))
    print("\n".join(f"{goal}: {where}" for goal, where in ELSEWHERE.items()))
    return 1 if any(_is_bad(outcome) for outcome in outcomes) else 0


def _run(rows: list[Row], side: str, ranks: int) -> list[Outcome]:
    quiet: dict[bool, Notes] = {}
    found = []
    for row in rows:
        is_plain = row.is_plain or side == TORCHRUN
        if is_plain not in quiet:
            print(f"--- {side}, {ranks} ranks, undisturbed", file=sys.stderr, flush=True)
            quiet[is_plain] = Trial(Row("undisturbed", "", "", is_plain=is_plain), side, ranks).run()[1]
        found.append(Trial(row, side, ranks, quiet[is_plain]).run()[0])
        print(line(found[-1]), file=sys.stderr, flush=True)
    return found


def _is_bad(outcome: Outcome) -> bool:
    fails = outcome.exit_code is None or False in (outcome.same_bits, outcome.samples_once)
    return bool(outcome.trouble) or (outcome.side == SAMEBITS and fails)


if __name__ == "__main__":
    sys.exit(main())
