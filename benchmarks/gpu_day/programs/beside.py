"""A step of an integration beside the library's own, in turn, each in a process of its own: `beside.py trainer|accelerated WORDS`."""

import json
import statistics
import subprocess
import sys

TURNS = 2
MOST = 1.03


def step_ms(program, words):
    """The last line's number."""
    command = [sys.executable, "-m", f"benchmarks.gpu_day.programs.{program}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return float(next(line for line in done.stdout.splitlines() if line.startswith("milliseconds ")).split()[1])


def main():
    program, *words = sys.argv[1:]
    turns = [(step_ms(program, [*words, "timed"]), step_ms(program, [*words, "timed", "theirs"])) for _ in range(TURNS)]
    ours, theirs = (statistics.median(side) for side in zip(*turns, strict=True))
    ratio = ours / theirs
    print(
        json.dumps(
            {"missed": ratio > MOST, "says": f"{ours:.2f} ms, {ratio:.3f} x {theirs:.2f} of theirs", "turns": turns}
        )
    )


if __name__ == "__main__":
    main()
