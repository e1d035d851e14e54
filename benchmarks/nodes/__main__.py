"""Jobs of 2 nodes x 2 ranks on hosts of this machine, under torchrun and under `lockstep run`, in turn.

    python -m benchmarks.nodes                          all cases, both contestants
    python -m benchmarks.nodes start join --rounds 3    some of them
    python -m benchmarks.nodes --only torchrun --json nodes.json

Needs root: the hosts are network namespaces (`tests/support/hosts.py`).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.ending import ends_shortly
from benchmarks.nodes.cases import CASES, Case, Measured
from benchmarks.nodes.contestants import CONTESTANTS, LOCKSTEP, TORCHRUN
from tests.support.hosts import network, why_not

Rounds = dict[str, list[Measured]]


@ends_shortly
def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"one of {', '.join(case.name for case in CASES)}")
    parser.add_argument("--only", choices=list(CONTESTANTS), help="one contestant")
    parser.add_argument("--rounds", type=int, help="of each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds there too")
    options = parser.parse_args()
    if unknown := set(options.cases) - {case.name for case in CASES}:
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    if why_not():
        parser.error(why_not())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the hosts are taken away
    names = [options.only] if options.only else list(CONTESTANTS)
    found = {
        case: run(case, names, options.rounds or case.rounds)
        for case in CASES
        if not options.cases or case.name in options.cases
    }
    if options.json:
        every = {
            case.name: {name: [asdict(one) for one in rounds[name]] for name in names} for case, rounds in found.items()
        }
        options.json.write_text(json.dumps(every, indent=1))
    print(f"\n{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}, load {os.getloadavg()[2]:.1f}\n\n{table(found, names)}")
    return 0


def run(case: Case, names: Sequence[str], rounds: int) -> Rounds:
    """A case with each contestant in turn, round by round."""
    found: Rounds = {name: [] for name in names}
    with network(2, relayed=case.is_relayed) as hosts:
        for number in range(rounds):
            for name in names:
                try:
                    measured = case.measure(CONTESTANTS[name], hosts)
                except AssertionError as error:
                    measured = Measured(None, str(error)[:600])
                found[name].append(measured)
                print(
                    f"{case.name} {number + 1} {name}: {_time(measured.seconds)} {measured.told}",
                    file=sys.stderr,
                    flush=True,
                )
    return found


def table(found: dict[Case, Rounds], names: Sequence[str]) -> str:
    """Markdown: medians, least and greatest, how many rounds came to a result, the ratio, and what was told."""
    both = list(names) == [TORCHRUN, LOCKSTEP]
    lines = [f"| | {' | '.join(names)} |{' times as fast |' if both else ''}", f"|---|{'---|' * (len(names) + both)}"]
    for case, rounds in found.items():
        cells = [_cell(rounds[name]) for name in names]
        if both:
            mine, other = (_median(rounds[name]) for name in (LOCKSTEP, TORCHRUN))
            cells.append(f"{other / mine:.1f}" if mine and other else "")
        lines.append(f"| {case.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _median(rounds: Sequence[Measured]) -> float | None:
    known = [one.seconds for one in rounds if one.seconds is not None]
    return median(known) if known else None


def _cell(rounds: Sequence[Measured]) -> str:
    known = [one.seconds for one in rounds if one.seconds is not None]
    told = "; ".join(dict.fromkeys(one.told for one in rounds if one.told))
    if not known:
        return f"{told}"
    spread = f" ({_time(min(known))} to {_time(max(known))})" if len(known) > 1 else ""
    missed = f", {len(rounds) - len(known)} of {len(rounds)} never" if len(known) < len(rounds) else ""
    return f"{_time(median(known))}{spread}{missed}{f': {told}' if told else ''}"


def _time(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
