"""What `make wheels`, `make try-wheels`, `make constraints` and `make help` decide before they start anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shipping import wheels
from shipping.constraints import kept, torch_of
from shipping.interpreters import Interpreter, interpreters
from shipping.refusal import Refusal
from shipping.try_wheels import Trial, best, fits, table

ROOT = Path(__file__).parents[3]
NAME = "samebits-0.1.0-{}-manylinux_2_27_{}.whl"


def python(minor: int, has_headers: bool = True) -> Interpreter:
    return Interpreter(Path(f"/usr/bin/python3.{minor}"), (3, minor), has_headers)


def test_wheels_are_built_with_3_11_and_with_the_oldest_python_that_has_the_stable_abi() -> None:
    assert wheels.chosen([python(11), python(12, has_headers=False), python(13), python(14)]) == [
        python(11),
        python(13),
    ]


@pytest.mark.parametrize(
    "found", [[], [python(11)], [python(12), python(13)], [python(11), python(12, has_headers=False)]]
)
def test_without_both_pythons_one_sentence_says_which_are_there_and_how_to_name_others(found) -> None:
    with pytest.raises(Refusal, match="PYTHONS="):
        wheels.chosen(found)


def test_a_target_has_the_tags_of_its_python() -> None:
    assert [wheels.Target(python(minor), "aarch64").tag for minor in (11, 12, 14)] == [
        "cp311-cp311",
        "cp312-abi3",
        "cp312-abi3",
    ]


def test_without_the_cross_compiler_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ziglang", None)
    assert wheels.main(["--dist", str(tmp_path / "dist")]) == 2
    said = capsys.readouterr().err
    assert "cross compiler" in said
    assert "pip install" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "dist").exists()


def test_a_python_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(Refusal, match="/bin/false is no CPython"):
        interpreters(["/bin/false"])
    (found,) = interpreters([sys.executable])
    assert found.version == sys.version_info[:2]


@pytest.mark.parametrize(
    ("tag", "version", "machine", "usable"),
    [
        ("cp311-cp311", (3, 11), "x86_64", True),
        ("cp311-cp311", (3, 12), "x86_64", False),
        ("cp312-abi3", (3, 11), "x86_64", False),
        ("cp312-abi3", (3, 12), "x86_64", True),
        ("cp312-abi3", (3, 14), "x86_64", True),
        ("cp312-abi3", (3, 14), "aarch64", False),
    ],
)
def test_a_wheel_fits_its_pythons_on_its_processor(tag, version, machine, usable) -> None:
    assert fits(NAME.format(tag, "x86_64"), version, machine) is usable


def test_of_two_wheels_that_fit_pip_takes_the_one_for_exactly_this_python() -> None:
    both = [Path(NAME.format(tag, "x86_64")) for tag in ("cp313-cp313", "cp312-abi3")]
    assert best(both, (3, 13), "x86_64") == both[0]
    assert best(both, (3, 14), "x86_64") == both[1]
    assert best(both, (3, 11), "x86_64") is None


def test_a_trial_is_good_when_every_way_gave_the_same_bits() -> None:
    good = Trial(Path("a.whl"), python(12), "2.13.0", ("portable", "avx2"), frozenset({"0123456789"}))
    assert good.is_good
    assert table([good]) == "Python 3.12  a.whl  torch 2.13.0, portable, avx2, bits 01234567"
    assert not Trial(Path("a.whl"), python(12), bits=frozenset({"01", "02"})).is_good
    assert not Trial(Path("a.whl"), python(12)).is_good
    assert not Trial(Path("a.whl"), python(12), bits=frozenset({"01"}), trouble="it fell over").is_good


def test_constraints_are_what_pip_froze_without_cuda_folders_and_local_versions() -> None:
    frozen = "Zeta==1\ntorch==2.13.0+cpu\nnvidia-nccl-cu13==2\ntriton==3.1\nown @ file:///somewhere\nalpha==0.1\n-e .\n"
    assert kept(frozen) == ["alpha==0.1", "torch==2.13.0", "Zeta==1"]
    assert torch_of("# why\nalpha==1\ntorch==2.13.0\n") == "2.13.0"
    with pytest.raises(Refusal, match="TORCH="):
        torch_of("alpha==1\n")


def test_make_help_has_a_line_for_every_target_and_is_what_make_says_without_one() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    said = subprocess.run(["make", "-s", "-C", ROOT], capture_output=True, text=True, check=True, timeout=60).stdout
    named = set(re.findall(r"^  make ([a-z-]+) ", said, re.MULTILINE))
    assert named == set(phony.replace("\\", " ").split())


def test_contributing_has_a_line_for_every_target() -> None:
    makefile, page = (ROOT / "Makefile").read_text(), (ROOT / "CONTRIBUTING.md").read_text()
    missing = [name for name in re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE) if f"`make {name}" not in page]
    assert missing == []
