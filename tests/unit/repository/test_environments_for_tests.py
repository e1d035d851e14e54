"""What `make test-torches` and `make test-peers` decide before they make an environment, and how they read results."""

from pathlib import Path

from tests import torches
from tests.support import environment

PROJECT = """
[project]
name = "a-package"
dependencies = ["torch>=2.11", "click>=8"]
[project.optional-dependencies]
plot = ["matplotlib"]
test = ["a-package[plot,native]", "pytest", "torchmetrics>=1"]
native = ["cmake"]
"""


def test_requirements_are_those_of_an_extra_and_of_the_extras_that_it_names_without_torch(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    found = environment.requirements("test", tmp_path / "pyproject.toml")
    assert sorted(found) == ["click>=8", "cmake", "matplotlib", "pytest", "torchmetrics>=1"]


def test_a_torch_is_good_only_when_tests_ran_and_none_failed_and_the_doctor_saw_nothing() -> None:
    report = '<testsuites><testsuite errors="2" failures="3" skipped="27" tests="172"></testsuite></testsuites>'
    assert torches.counts(report) == (140, 5, 27)
    good = torches.Result("2.15.0", passed=900, healthy=True, seconds=600)
    assert good.is_good
    bad = [
        torches.Result("1", passed=900, failed=1, healthy=True),
        torches.Result("2", healthy=True),
        torches.Result("3", passed=900),
        torches.Result("4", passed=900, healthy=True, missing=("torch._C._x (dp)",)),
        torches.Result("5", trouble="TimeoutExpired: an hour"),
    ]
    assert not any(each.is_good for each in bad)
    lines = torches.table([good, *bad]).splitlines()
    assert lines[1].split() == ["2.15.0", "900", "0", "0", "10.0", "none,", "fit"]
    assert lines[5].endswith("torch._C._x (dp), fit")
    assert lines[6].endswith("TimeoutExpired: an hour")
