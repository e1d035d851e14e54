"""How many GPUs a machine has for a run, whatever kind it is, and why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from samebits.machine.gpus import QUESTION, ask_torch, count_gpus, has_parts, uncounted
from samebits.machine.torch_versions import built_for


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
    ],
)
def test_device_files_are_counted_and_cuda_visible_devices_chooses_among_them(
    visible: str | None, count: int, devices: Path, listed: Path
) -> None:
    put(devices, "nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm")
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_gpus(variables, devices, listed, never) == count


def test_a_drivers_list_without_device_files_may_be_that_of_the_host_so_torch_is_asked(
    devices: Path, listed: Path
) -> None:
    (listed / "0000:08:00.0").mkdir(parents=True)
    assert count_gpus({}, devices, listed, three) == 3


def test_torch_is_asked_where_a_gpu_is_divided(devices: Path, listed: Path) -> None:
    put(devices, "nvidia0")
    (listed / "0000:08:00.0").mkdir(parents=True)
    (listed.parent / "capabilities" / "gpu0" / "mig").mkdir(parents=True)
    assert not has_parts(listed)
    (listed.parent / "capabilities" / "gpu0" / "mig" / "gi1").mkdir()
    assert count_gpus({}, devices, listed, three) == 3


@pytest.mark.parametrize(("name", "built"), [("kfd", "rocm"), ("nvmap", "cuda")])
def test_torch_is_asked_where_a_gpu_cannot_be_counted(name: str, built: str, devices: Path, listed: Path) -> None:
    put(devices, name)
    assert count_gpus({}, devices, listed, three, {built: "1"}) == 3


@pytest.mark.parametrize("is_for", [{}, {"cuda": "12.8"}])
def test_a_laptop_with_an_amd_processor_costs_no_question(is_for: dict[str, str], devices: Path, listed: Path) -> None:
    put(devices, "kfd")
    assert count_gpus({}, devices, listed, never, is_for) == 0


def test_a_gpu_that_windows_shows_counts_where_it_lends_cuda(devices: Path, listed: Path, tmp_path: Path) -> None:
    put(devices, "dxg")
    assert uncounted(devices, listed, {"cuda": "12.8"}, tmp_path / "libcuda.so.1") == []
    (tmp_path / "libcuda.so.1").touch()
    assert uncounted(devices, listed, {"cuda": "12.8"}, tmp_path / "libcuda.so.1") == ["dxg"]


@pytest.mark.parametrize("chosen", ["MIG-1f2e", "GPU-1f2e,GPU-3d4c", "NoDevFiles"])
def test_torch_is_asked_where_gpus_are_chosen_by_a_name(chosen: str, devices: Path, listed: Path) -> None:
    put(devices, "nvidia0")
    assert count_gpus({"CUDA_VISIBLE_DEVICES": chosen}, devices, listed, three) == 3


def test_a_machine_without_gpus_costs_no_question(devices: Path, listed: Path) -> None:
    assert count_gpus({"CUDA_VISIBLE_DEVICES": "0"}, devices, listed, never) == 0


def test_torch_is_asked_in_a_process_that_may_print_and_fail(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    torch = folder / "torch.py"
    torch.write_text(
        "import types, os\nprint('a banner')\ncuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: len(os.environ['SEEN']))\n"
    )
    variables = {"PYTHONPATH": str(folder), "SEEN": "ab"}
    assert ask_torch(variables) == 2
    torch.write_text("raise ImportError('libhsa-runtime64.so')\n")
    assert ask_torch(variables) == 0
    assert "device_count" in QUESTION


@pytest.mark.parametrize(
    ("text", "builds"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", {}),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", {"cuda": "12.8"}),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482'\n", {"rocm": "6.4.43482"}),
        ("cuda = None\nxpu = '20250302'\n", {"xpu": "20250302"}),
        ("__version__ = '2.13'\n", {"cuda": ""}),
    ],
)
def test_what_torch_was_built_for_is_in_its_version_file(text: str, builds: dict[str, str]) -> None:
    assert built_for(text) == builds
