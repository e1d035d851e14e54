"""Whether wheels do what they are for: `make try-wheels`, or `python -m shipping.try_wheels [PYTHON...]`.

Each wheel in `dist/` for this machine's processor is installed, with its dependencies, into an empty environment of
each Python that can have it, and used there with nothing but that environment on the PATH, so without a compiler: the
doctor looks, two ranks train over shared memory, over Gloo, and with each set of instructions that this processor
knows. All must give the same bits.

torch for CUDA brings 3 to 5 GB of packages with it where the index has no CPU build.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shipping.interpreters import Interpreter, interpreters
from shipping.refusal import Refusal, ended

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import os
import sys
import torch
import torch.nn.functional as F
import samebits
from samebits import _native

assert "site-packages" in _native.__file__, _native.__file__
assert _native.choose_variant(os.environ["TRIED_VARIANT"])
run = samebits.init(seed=0, lanes=4, threads=1)
model = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(3):
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
"""


@dataclass
class Trial:
    """A wheel under a Python."""

    wheel: Path
    interpreter: Interpreter
    torch: str = ""
    variants: tuple[str, ...] = ()
    bits: frozenset[str] = frozenset()
    trouble: str = ""

    @property
    def is_good(self) -> bool:
        return not self.trouble and len(self.bits) == 1


def fits(wheel: str, version: tuple[int, int], machine: str) -> bool:
    """Whether a Python of this version on this processor can have the wheel of that name."""
    *_, python, abi, tags = wheel.removesuffix(".whl").split("-")
    if not tags.endswith(f"_{machine}"):
        return False
    least = (int(python[2]), int(python[3:]))
    return version >= least if abi == "abi3" else version == least


def best(wheels: Sequence[Path], version: tuple[int, int], machine: str) -> Path | None:
    """The wheel that pip would take."""
    usable = [wheel for wheel in wheels if fits(wheel.name, version, machine)]
    return max(usable, key=lambda wheel: "-abi3-" not in wheel.name, default=None)


def tried(wheel: Path, interpreter: Interpreter, constraints: Sequence[str]) -> Trial:
    """Install and use it, in folders that are removed again."""
    trial = Trial(wheel, interpreter)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        try:
            subprocess.run([interpreter.path, "-m", "venv", home / "env"], check=True, timeout=300)
            pip = [str(home / "env/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, str(wheel), *constraints], check=True, timeout=3600)
            _use(trial, home)
        except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
            said = getattr(error, "stderr", None) or ""
            trial.trouble = f"{type(error).__name__}: {error} {said[-2000:]}"
    return trial


def _use(trial: Trial, home: Path) -> None:
    (home / "train.py").write_text(SCRIPT)
    told = json.loads(_output(home, "samebits", "doctor", "--json"))
    state = {row["what"]: (row["state"], row["text"]) for row in told["rows"]}["compiled part"]
    trial.torch = told["torch"]["version"]
    if state[0] != "ok":
        raise ValueError(f"the doctor says of the compiled part: {state[1]}")
    question = "from samebits import _native; print(*_native.variants())"
    trial.variants = tuple(_output(home, "python", "-c", question).split())
    bits = {_trained(home, variant, "-n", "2") for variant in trial.variants}
    for options in (("-n", "1"), ("-n", "2", "--backend", "gloo"), ("-n", "2", "--strategy", "zero1")):
        bits.add(_trained(home, trial.variants[-1], *options))
    trial.bits = frozenset(bits)


def _trained(home: Path, variant: str, *options: str) -> str:
    """The hash that a run ends with, whole with -v, on standard error as all of samebits's own lines."""
    done = _ended(home, "samebits", "run", "-v", *options, "train.py", TRIED_VARIANT=variant)
    found = re.search(r"sha256:(\w+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise ValueError(done.stdout + done.stderr)
    return found[1]


def _output(home: Path, program: str, *arguments: str) -> str:
    done = _ended(home, program, *arguments)
    if done.returncode not in (0, 1):  # 1: the doctor found something that does not matter here
        raise ValueError(done.stdout + done.stderr)
    return done.stdout


def _ended(home: Path, program: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": str(home / "env/bin"), "HOME": str(home), **more}
    command = [str(home / "env/bin" / program), *arguments]
    return subprocess.run(
        command,
        cwd=home,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def table(trials: Sequence[Trial]) -> str:
    """A line for each trial."""
    lines = []
    for each in trials:
        told = (
            f"torch {each.torch}, {', '.join(each.variants)}, bits {', '.join(bits[:8] for bits in sorted(each.bits))}"
        )
        lines.append(f"Python {each.interpreter}  {each.wheel.name}  {each.trouble or told}")
    return "\n".join(lines)


def _work(asked: argparse.Namespace) -> None:
    wheels = sorted(asked.dist.glob("samebits-*.whl"))
    machine = platform.machine()
    pairs = [(best(wheels, each.version, machine), each) for each in interpreters(asked.pythons)]
    trials = []
    for wheel, interpreter in pairs:
        if wheel is not None:
            print(f"--- Python {interpreter}: {wheel.name}", flush=True)
            trials.append(tried(wheel, interpreter, asked.with_packages))
            print(table(trials[-1:]), flush=True)
    if not trials:
        raise Refusal(f"{asked.dist} has no wheel for a Python of this machine: make wheels")
    if not all(each.is_good for each in trials):
        raise Refusal("a wheel does not do what it is for: the lines above say which, and why.")


def main(arguments: Sequence[str]) -> int:
    """0 when every wheel worked with every Python that can have it."""
    parser = argparse.ArgumentParser(
        prog="python -m shipping.try_wheels", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("pythons", nargs="*", help="Pythons to try [those that are found]")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheels are [dist]")
    parser.add_argument("--with-packages", nargs="*", default=[], help="requirements for pip beside the wheel")
    asked = parser.parse_args(arguments)
    return ended(lambda: _work(asked))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
