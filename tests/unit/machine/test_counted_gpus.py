"""How many GPUs a machine has for a run, whatever kind it is, and why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep.machine.gpus import QUESTION, ask_torch, count_gpus, speaks_cuda, why_none


def never(variables: Mapping[str, str]) -> int:
    raise AssertionError("torch is asked, which takes seconds")


def three(variables: Mapping[str, str]) -> int:
    return 3


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev"


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    return tmp_path / "gpus"


def put(devices: Path, *names: str) -> None:
    for name in names:
        (devices / name).touch()


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 3),
        ("0,2", 2),
        ("2", 1),
        ("", 0),
        ("-1", 0),
        ("1,-1,2", 1),
        ("9", 0),
        ("0,1,2,3", 3),
        ("0,9,1", 1),
        ("0,0", 0),
        ("GPU-1f2e,GPU-3d4c", 2),
        ("GPU-1f2e,nonsense", 1),
        ("NoDevFiles", 0),
    ],
)
def test_device_files_are_counted_and_cuda_visible_devices_chooses_among_them(
    visible: str | None, count: int, devices: Path, listed: Path
) -> None:
    put(devices, "nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm")
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_gpus(variables, devices, listed, never) == count


def test_the_drivers_list_counts_where_there_are_no_device_files(devices: Path, listed: Path) -> None:
    for bus in ("0000:08:00.0", "0000:18:00.0"):
        (listed / bus).mkdir(parents=True)
    assert count_gpus({}, devices, listed, never) == 2


@pytest.mark.parametrize("name", ["dxg", "kfd", "nvmap"])
def test_torch_is_asked_where_a_gpu_cannot_be_counted(name: str, devices: Path, listed: Path) -> None:
    put(devices, name)
    assert count_gpus({}, devices, listed, three) == 3


def test_torch_is_asked_about_parts_of_a_gpu(devices: Path, listed: Path) -> None:
    put(devices, "nvidia0")
    assert count_gpus({"CUDA_VISIBLE_DEVICES": "MIG-1f2e"}, devices, listed, three) == 3


def test_a_machine_without_gpus_costs_no_question(devices: Path, listed: Path) -> None:
    assert count_gpus({"CUDA_VISIBLE_DEVICES": "0"}, devices, listed, never) == 0


def test_torch_is_asked_in_a_process_that_may_print_and_fail(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    torch = folder / "torch.py"
    torch.write_text(
        "import types, os\nprint('a banner')\ncuda = types.SimpleNamespace(device_count=lambda: len(os.environ['SEEN']))\n"
    )
    variables = {"PYTHONPATH": str(folder), "SEEN": "ab"}
    assert ask_torch(variables) == 2
    torch.write_text("raise ImportError('libhsa-runtime64.so')\n")
    assert ask_torch(variables) == 0
    assert "device_count" in QUESTION


@pytest.mark.parametrize(
    ("text", "speaks"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", True),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482'\n", True),
        ("cuda = None\n", False),
        ("__version__ = '2.13'\n", True),
    ],
)
def test_a_build_for_rocm_is_one_for_gpus(text: str, speaks: bool) -> None:
    assert speaks_cuda(text) is speaks


@pytest.mark.parametrize(
    ("names", "visible", "is_cpu_build", "problem", "fix"),
    [
        ([], None, False, "No GPU that the installed torch can use was found here.", "Start with --device cpu."),
        (["nvidia0"], None, True, "The installed torch is a CPU build, which cannot use the GPU of", "(pip install torch --index-url"),
        (["nvidia0", "nvidia1"], None, True, "The installed torch is a CPU build, which cannot use the 2 GPUs of", "pip install"),
        (["kfd"], None, True, "The installed torch is a CPU build, which cannot use the GPU of", "pytorch.org/get-started"),
        (["nvidia0"], "9", False, "CUDA_VISIBLE_DEVICES='9' hides the GPU of this machine.", "Unset it"),
    ],
)  # fmt: skip
def test_it_is_said_why_there_is_no_gpu(
    names: list[str],
    visible: str | None,
    is_cpu_build: bool,
    problem: str,
    fix: str,
    devices: Path,
    listed: Path,
) -> None:
    put(devices, *names)
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    told = why_none(variables, devices, listed, lambda: is_cpu_build)
    assert told[0].startswith(problem)
    assert fix in told[1]
