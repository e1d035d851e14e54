"""Other CPUs than this machine's, emulated: the same bits under numerics="portable", other ones without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.protocol.portable import portable_variables
from samebits.rank.portable import known_answers as answers
from tests.support.portable import CPUS, emulated, needs_emulator, needs_portable
from tests.support.promises import promise

pytestmark = [needs_portable, needs_emulator, pytest.mark.ranks]
DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
BITS_OF_TWO_EPOCHS = "ddf7c8de896a"
"""Of torch 2.13, on every CPU that was ever asked."""
UNHELD = """
import json
from samebits.rank.portable import known_answers as answers
del answers._kernels["LSTM (without oneDNN)"]  # the emulator dies in oneDNN's
print(json.dumps(answers.answers()))
"""


def run(command: list[str | Path], **variables: str | Path) -> str:
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def digits(folder: Path, *words: str, python: Path | None = None) -> str:
    """The beginning of the hash that two epochs leave."""
    command = [sys.executable, "-m", "samebits", "run", "--numerics", "portable", *words, DIGITS, "--epochs", "2"]
    weights = ("--weights", folder / "digits.safetensors")
    variables = {"SAMEBITS_RUNS": folder / "runs", **({"SAMEBITS_PYTHON": python} if python is not None else {})}
    run([*command, *weights], **variables)
    (result,) = (folder / "runs").glob("*/result.json")
    return str(json.loads(result.read_text())["bits"]).removeprefix("sha256:")[: len(BITS_OF_TWO_EPOCHS)]


@promise(
    "on-every-x86-64-cpu",
    "Known answers, a whole run, and two ranks or two nodes on different CPUs that train one model have "
    "the same bits natively and on emulated CPUs of other kinds, where those without it differ",
    also=[
        "test_a_whole_run_on_an_emulated_cpu_has_the_same_bits",
        "test_two_ranks_on_different_cpus_train_one_model",
        "test_two_nodes_with_different_cpus_have_the_bits_of_one",
        "test_without_it_the_emulated_cpu_has_other_bits",
    ],
)
@pytest.mark.parametrize(
    "cpu", ["Haswell", *(pytest.param(cpu, marks=pytest.mark.thorough) for cpu in CPUS if cpu != "Haswell")]
)
def test_an_emulated_cpu_gives_the_same_bits(tmp_path, cpu):
    # Started with the variables, or torch would be imported twice, at 8 s each.
    told = run([emulated(tmp_path, cpu), "-m", "samebits.rank.portable"], **portable_variables({}))
    found = json.loads(told)["answers"]
    assert found == answers.recorded()[answers.torch_version()]


@pytest.mark.thorough
@pytest.mark.parametrize("cpu", CPUS)
def test_without_it_the_emulated_cpu_has_other_bits(tmp_path, cpu):
    here = json.loads(run([sys.executable, "-c", UNHELD]))
    there = json.loads(run([emulated(tmp_path, cpu), "-c", UNHELD]))
    assert len([name for name in here if here[name] != there[name]]) > len(here) / 3


@pytest.mark.thorough
@pytest.mark.parametrize("cpu", CPUS)
def test_a_whole_run_on_an_emulated_cpu_has_the_same_bits(tmp_path, cpu):
    assert digits(tmp_path, "-n", "1", python=emulated(tmp_path, cpu)) == BITS_OF_TWO_EPOCHS


@pytest.mark.thorough
@pytest.mark.parametrize("cpu", CPUS)
def test_two_ranks_on_different_cpus_train_one_model(tmp_path, cpu):
    python = emulated(tmp_path, cpu, only_rank=1)
    assert digits(tmp_path, "-n", "2", "--start-method=spawn", python=python) == BITS_OF_TWO_EPOCHS
