"""Why no GPU is used is one sentence with what to do, and who left the choice to samebits hears it."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.machine.gpus import newer_driver
from samebits.machine.no_gpu import INSTALL, NO_GPU, Signs, ask_why, first_sentence, has_nvidia, why_none
from tests.support.promises import promise

CUDA = {"cuda": "12.8"}
ONE = Signs(1, True, False, "570.86", CUDA)
EIGHT = Signs(8, True, False, "570.86", CUDA)


def words(_: object) -> str:
    return "CUDA unknown error"


@promise(
    "bad-input-and-what-a-person-is-told",
    "Where no GPU can be used, it is said why, and `--device cuda` ends before anything starts",
    also=[
        "test_bad_input_on_gpus.py::test_what_cannot_be_is_one_sentence_with_the_way_out",
        "test_who_leaves_the_choice_to_samebits_is_told_of_gpus_that_stay_idle",
    ],
)
@pytest.mark.parametrize(
    ("signs", "visible", "problem", "fix"),
    [
        (Signs(0, False, False, "", CUDA), None, NO_GPU.problem, "Start with --device cpu."),
        (Signs(1, True, False, "", {}), None, "The installed torch is a CPU build, which cannot use the GPU of this machine.", f"Install another one ({INSTALL}), or start"),
        (Signs(8, True, False, "", {}), "0", "The installed torch is a CPU build, which cannot use the 8 GPUs of this machine.", "Install"),
        (ONE, "9", "CUDA_VISIBLE_DEVICES='9' hides the GPU of this machine.", "Unset it, or start with"),
        (EIGHT, "MIG-1f", "CUDA_VISIBLE_DEVICES='MIG-1f' hides the 8 GPUs of this machine.", "Unset"),
        (EIGHT, "0,0", "CUDA_VISIBLE_DEVICES='0,0' hides the 8 GPUs of this machine.", "Unset it"),
        (EIGHT, "", "CUDA_VISIBLE_DEVICES='' hides the 8 GPUs of this machine.", "Unset it"),
        (Signs(1, True, False, "470.57.02", CUDA), None, "The NVIDIA driver 470.57.02 is too old for the installed torch, which is built for CUDA 12.8 and needs 525.60.", "Update the driver, install a torch for"),
        (Signs(0, True, True, "", CUDA), None, "There is an NVIDIA GPU, but no driver for it.", "Install the driver, or let this container"),
        (ONE, None, "torch cannot use the GPU of this machine: CUDA unknown error.", "See `samebits doctor`, or start"),
    ],
)  # fmt: skip
def test_it_is_said_why_there_is_no_gpu(signs: Signs, visible: str | None, problem: str, fix: str) -> None:
    told = why_none({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, signs, words)
    assert told.problem == problem
    assert told.fix.startswith(fix)


def test_whoever_left_the_choice_to_samebits_hears_of_a_gpu_that_is_not_used() -> None:
    note = why_none({}, Signs(1, True, False, "", {})).note
    assert note.endswith(f"The CPU computes. Install another one ({INSTALL}), or start with --device cpu.")
    assert why_none({"CUDA_VISIBLE_DEVICES": "9"}, ONE).note
    assert not why_none({"CUDA_VISIBLE_DEVICES": ""}, ONE).note, "hidden on purpose"
    assert not why_none({"CUDA_VISIBLE_DEVICES": "-1"}, ONE).note
    assert not why_none({"CUDA_VISIBLE_DEVICES": ""}, Signs(1, True, False, "", {})).note, "on a build for CPUs, too"
    in_a_container = why_none({}, Signs(0, True, True, "", {}))
    assert in_a_container.problem == "There is an NVIDIA GPU, but no driver for it."
    assert not in_a_container.note
    assert not NO_GPU.note
    assert why_none({}, Signs(1, True, False, "", {})).in_python.fix.endswith('or say device="cpu".')


def test_torch_says_it_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    def init():\n        raise RuntimeError('The driver is too old (found 11040). Please update.\\nmore')\n"
    )
    assert ask_why({"PYTHONPATH": str(tmp_path)}) == "The driver is too old (found 11040)"
    (tmp_path / "torch.py").write_text("raise ImportError")
    assert not ask_why({"PYTHONPATH": str(tmp_path)})


def test_a_sentence_goes_on_behind_an_abbreviation() -> None:
    text = "Wrong environment, e.g. a variable. Setting the devices to zero."
    assert first_sentence(text) == "Wrong environment, e.g. a variable"
    assert first_sentence("Found no driver.") == "Found no driver"


def test_a_gpu_without_a_driver_is_on_the_bus(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x8086", "0x030000"), ("b", "0x10de", "0x040300")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert not has_nvidia(tmp_path), "another maker's, and the sound of a GPU"
    (tmp_path / "b" / "class").write_text("0x030200\n")
    assert has_nvidia(tmp_path)


@pytest.mark.parametrize(
    ("driver", "cuda", "newer"),
    [
        ("470.57.02", "12.8", "525.60"),
        ("525.60.13", "12.8", ""),
        ("570.1", "13.0", "580.65"),
        ("", "12.8", ""),
        ("470.1", "", ""),
    ],
)
def test_a_driver_is_compared_with_what_torch_was_built_for(driver: str, cuda: str, newer: str) -> None:
    assert newer_driver(driver, cuda) == newer
