"""The device's paths on pretended GPUs, in a pytest of its own that believes in them: all in the nightly job, as compiling the device takes a minute.

The library is loaded before torch, and this process has torch without it. `make test-pretend` runs all of them.
"""

import subprocess
import sys

import pytest

from tests.pretend.build import CannotPretend, why_not
from tests.pretend.surroundings import surroundings
from tests.support.environment import ROOT

REHEARSED = "tests/pretend/rehearsed"
STARTING = [
    f"{REHEARSED}/test_{name}.py"
    for name in (
        *(
            "bad_input_on_gpus",
            "failures_on_gpus",
            "first_minutes_on_gpus",
            "gpu_day_rehearsal",
            "integrations_on_gpus",
        ),
        "ranks_that_share_a_gpu",
    )
]
"""Mostly scripts that are started."""
CHOSEN = {
    "a handful": [
        f"{REHEARSED}/test_exchanges_on_gpus.py::test_a_sum_takes_two_calls_and_has_the_bits_of_the_tree[3]",
        (
            f"{REHEARSED}/test_late_numbers_on_gpus.py"
            "::test_losses_and_statistics_that_nobody_waited_for_have_the_bits_of_the_cpu_on_any_number_of_ranks"
        ),
    ],
    "scripts": [
        *STARTING,
        "tests/cuda/test_devices_of_ranks.py::test_cuda_without_an_index_is_the_ranks_own_device",
    ],
    "ranks": [
        REHEARSED,
        *(f"--ignore={file}" for file in STARTING),
        "tests/cuda/test_several_gpus_of_a_process.py",
        "tests/cuda/test_one_gpu.py::test_two_gpus_have_the_bits_of_one",
        "tests/cuda/test_one_gpu.py::test_a_run_on_a_gpu_goes_on_with_the_same_bits",
        "tests/ranks/test_same_bits.py::test_the_bits_do_not_depend_on_the_number_of_ranks[batch_norm_and_dropout-3]",
        "tests/ranks/rank/strategy/test_zero1.py::test_a_mistake_is_one_sentence_on_every_rank[random_numbers_in_the_step]",
        "tests/ranks/rank/run/test_evaluation.py::test_what_was_put_together_is_not_said[all_reduce]",
    ],
}
"""Of each kind one. Scripts that are started are what the others are, once more from the command line."""


@pytest.mark.ranks
@pytest.mark.compiles
@pytest.mark.thorough
@pytest.mark.parametrize("what", ["a handful", "ranks", "scripts"])
def test_the_devices_paths_work_on_pretended_gpus(what):
    try:
        variables = surroundings()
    except CannotPretend as problem:
        pytest.skip(str(problem))
    command = [sys.executable, "-m", "pytest", "-p", "tests.pretend.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
    inner = {name: value for name, value in variables.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        [*command, "-m", "not thorough", *CHOSEN[what]],
        cwd=ROOT,
        env=inner,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2_000:]


@pytest.mark.parametrize(
    ("version", "is_for_cpus", "compiler", "reason"),
    [
        ("2.13.0+cpu", True, "g++", ""),
        ("2.13.0", True, "g++", ""),
        ("2.13.0+cu130", False, "g++", "real GPUs"),
        ("2.14.1+cpu", True, "g++", "fits the headers of torch 2.13.0, but 2.14.1"),
        ("2.13.0+cpu", True, None, "no C++ compiler"),
    ],
)
def test_the_device_is_made_only_where_it_fits(version, is_for_cpus, compiler, reason):
    told = why_not(version, is_for_cpus, "2.13.0", compiler)
    assert (reason in told) if reason else not told
