"""What the doctor says about machines that are not here: every check is a pure function."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import samebits
from samebits.launcher.doctor.examination import (
    backend_row,
    compiled_row,
    core_rows,
    device_row,
    folder_row,
    foreign_command,
    leftover_row,
    open_files_row,
    package_row,
    read_space,
    shared_memory_row,
    size_text,
    stacks_row,
    strangers,
    torch_row,
)
from samebits.launcher.doctor.report import Report, Row, State, note, ok, problem
from samebits.launcher.doctor.torch_facts import TorchFacts, parse_facts
from samebits.launcher.sizing import Machine
from samebits.launcher.terminal.report import device_names
from samebits.machine import torch_versions
from samebits.machine.cores import Cores
from samebits.machine.gpus import gpu_names, parse_driver
from samebits.machine.leftovers import orphaned_processes, orphaned_shared_memory
from samebits.machine.no_gpu import NO_GPU, NoGpu

CPU = TorchFacts(version="2.13.0+cpu", numpy="2.4.6", backends=("gloo",), cpu="AVX512", instructions="avx512")
CUDA = TorchFacts(
    version="2.13.0+cu128", numpy="2.4.6", built_for="cuda 12.8", devices=("NVIDIA H200",) * 2,
    backends=("gloo", "nccl"), nccl="2.27.3",
)  # fmt: skip
BROKEN = TorchFacts(error="ModuleNotFoundError: No module named 'torch'")
DRIVER = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)\n"
GIB = 1 << 30
PACKAGE = Path(samebits.__file__).parent
INFORMATION = """Model:          {}
IRQ:            256
GPU UUID:      {}
Bus Location:      {}
Device Minor:      {}
"""


def said(row: Row) -> tuple[str, str]:
    return str(row.state), row.text


def test_another_packages_files_in_our_folder_are_a_problem_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samebits").symlink_to(PACKAGE)
    for name, file in (("samebits-ml", "samebits/__init__.py"), ("harmless", "harmless/samebits.py")):
        info = tmp_path / f"{name.replace('-', '_')}-0.0.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.2\n")
        (info / "RECORD").write_text(f"{file},,\n")
    assert strangers() == []
    monkeypatch.syspath_prepend(str(tmp_path))
    assert strangers() == ["samebits-ml 0.0.2"]
    row = package_row("0.1.0", strangers(), "")
    assert row.state is State.PROBLEM
    assert "samebits-ml" in row.text
    assert row.fix.startswith("pip uninstall samebits-ml, then pip install")


def test_another_program_of_our_name_in_front_of_ours_is_a_note(tmp_path: Path) -> None:
    for folder, text in (("theirs", "import train"), ("ours", "from samebits.cli.main import main")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "samebits").write_text(text)
        (tmp_path / folder / "samebits").chmod(0o755)
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    assert foreign_command(f"{theirs}:{ours}") == f"{theirs}/samebits"
    assert foreign_command(f"{ours}:{theirs}") == foreign_command(str(tmp_path)) == ""
    assert said(package_row("0.1.0", [], f"{theirs}/samebits"))[0] == "note"


def test_what_does_not_fit_is_a_note_with_what_a_run_does_then() -> None:
    sentence = "The backend samebits does not work with torch 9.0 (TypeError: no)."
    row = backend_row(replace(CPU, misfit=sentence))
    assert said(row) == ("note", f"gloo; not nccl, mpi, ucc. Here gloo is used. {sentence}")
    missing = torch_row(replace(CPU, missing=("torch._C._x (stages)", "torch._y (dp)")), -1)
    assert missing.state is State.NOTE
    assert missing.text.endswith("; missing: torch._C._x (stages), torch._y (dp)")


def test_torch_is_too_old_or_newer_than_all_tested_ones_or_cannot_be_imported() -> None:
    assert said(torch_row(CPU, -1)) == ("ok", "2.13.0+cpu, a CPU build, kernels for AVX512, NumPy 2.4.6")
    too_old = torch_row(replace(CPU, version="2.10.1"), -1)
    assert (too_old.state, too_old.fix) == (State.PROBLEM, "samebits needs 2.11 or newer.")
    newer = torch_row(replace(CPU, version="9.0.1.dev20300101+cpu"), -1)
    assert newer.state is State.NOTE
    assert f"newer than any tested with samebits ({torch_versions.tested_range()})" in newer.text
    assert newer.fix.startswith(f"A tested one: pip install torch=={torch_versions.TESTED[-1]}.")
    assert "shared memory is used" in backend_row(replace(CPU, version="9.0.1")).text
    assert torch_row(BROKEN, 9 << 30).text.startswith("cannot be imported: ModuleNotFoundError")
    assert torch_row(BROKEN, 9 << 30).fix == "pip install torch, into this Python."
    assert torch_row(replace(CPU, tasks=3), -1).state is State.NOTE


@pytest.mark.parametrize(
    "facts",
    [
        TorchFacts(error="ImportError: libc10.so: failed to map segment from shared object"),
        TorchFacts(error="the interpreter ended with exit code -6", is_crashed=True),
    ],
)
def test_too_few_addresses_for_torch_are_a_problem_with_the_fix(facts: TorchFacts) -> None:
    assert torch_row(facts, 500 << 20).fix == "ulimit -v unlimited"
    assert torch_row(facts, -1).fix == "pip install torch, into this Python."


def test_devices_have_names_and_where_there_are_none_it_says_why_as_a_run_does() -> None:
    assert said(device_row(CUDA, NO_GPU)) == ("ok", "cuda:0 to cuda:1 (NVIDIA H200)")
    assert said(device_row(CPU, NO_GPU)) == ("ok", "cpu")
    old = NoGpu("The driver is too old.", "Update it.", is_news=True)
    assert device_row(CPU, old) == note("devices", "cpu. The driver is too old.", "Update it.")
    assert said(device_row(CPU, old._replace(is_news=False))) == ("ok", "cpu. The driver is too old.")


def test_a_folder_that_is_gone_or_cannot_be_made_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder_row(tmp_path / "not" / "there").state is not State.PROBLEM
    assert read_space(tmp_path / "not" / "there")[2] is True
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert folder_row(Path("samebits-runs")).state is State.PROBLEM


def test_the_drivers_version_is_read_in_both_of_its_forms() -> None:
    assert [parse_driver(text) for text in (DRIVER, OPEN_DRIVER, "")] == ["535.104.05", "570.86.15", ""]


@pytest.mark.parametrize(
    ("count", "names", "text"),
    [
        (1, ("NVIDIA H200",), "cuda:0 (NVIDIA H200)"),
        (2, ("A", "A", "A"), "cuda:0 to cuda:1 (A)"),
        (2, ("A", "B"), "cuda:0 (A), cuda:1 (B)"),
        (2, ("A",), "cuda:0 to cuda:1"),
        (4, (), "cuda:0 to cuda:3"),
    ],
)
def test_device_names_are_short(count: int, names: tuple[str, ...], text: str) -> None:
    assert device_names(count, names) == text


def test_names_are_read_from_the_driver_and_follow_cuda_visible_devices(tmp_path: Path) -> None:
    for minor, (uuid, name) in enumerate(
        (("GPU-aa11", "NVIDIA A100"), ("GPU-bb22", "NVIDIA A100"), ("GPU-cc33", "NVIDIA T4"))
    ):
        bus = f"0000:{minor}8:00.0"
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        (tmp_path / "gpus" / bus / "information").write_text(INFORMATION.format(name, uuid, bus, minor))
    (tmp_path / "dev").mkdir()

    def names(count: int, **variables: str) -> tuple[str, ...]:
        return gpu_names(variables, count, tmp_path / "dev", tmp_path / "gpus")

    by_bus = "PCI_BUS_ID"
    assert names(3) == (), "CUDA counts the fastest first"
    assert names(3, CUDA_DEVICE_ORDER=by_bus) == ("NVIDIA A100", "NVIDIA A100", "NVIDIA T4")
    assert names(2, CUDA_DEVICE_ORDER=by_bus, CUDA_VISIBLE_DEVICES="2,0") == ("NVIDIA T4", "NVIDIA A100")
    assert names(1, CUDA_DEVICE_ORDER=by_bus, CUDA_VISIBLE_DEVICES="GPU-cc") == ()
    assert names(1, CUDA_DEVICE_ORDER=by_bus, CUDA_VISIBLE_DEVICES="MIG-1") == ()
    for minor in (0, 1):
        (tmp_path / "dev" / f"nvidia{minor}").touch()
    assert names(2) == ("NVIDIA A100",) * 2, "a container has device files for its own devices only"
    assert gpu_names({}, 1, tmp_path / "dev", tmp_path / "missing") == ()


def test_cores_and_what_a_run_would_make_of_them() -> None:
    cores, ranks = core_rows(Machine(Cores(2, "cgroup quota of 2.5"), 0), 64)
    assert cores.text == "2 by cgroup quota of 2.5, of 64 by affinity"
    assert said(ranks) == ("ok", "`samebits run` would start 2 ranks on cpu, 1 thread each")
    assert core_rows(Machine(Cores(2, "affinity"), 0, "8"), 2)[1].state is State.NOTE
    assert "2 ranks on cuda, 4 threads each" in core_rows(Machine(Cores(8, "affinity"), 2), 8)[1].text


def test_back_ends_and_which_is_used() -> None:
    assert said(backend_row(CPU)) == ("ok", "gloo; not nccl, mpi, ucc. Here shared memory is used")
    assert backend_row(CUDA).text.endswith("Here nccl between GPU ranks, shared memory between CPU ranks")
    assert backend_row(replace(CPU, not_compiled="no; fix")).text.endswith("Here gloo is used")
    assert backend_row(replace(CPU, backends=())).state is State.PROBLEM
    assert backend_row(replace(CUDA, backends=("gloo",))).state is State.NOTE


def test_the_compiled_part_is_a_row_with_the_way_out_where_it_is_missing() -> None:
    assert said(compiled_row(CPU)) == ("ok", "loads, avx512: CPU ranks of one node share memory")
    assert compiled_row(BROKEN).state is State.PROBLEM
    missing = compiled_row(replace(CPU, instructions="", not_compiled="it was not built; install g++"))
    assert missing == note("compiled part", "it was not built: CPU ranks use gloo, which is slower", "install g++")


def test_limits_that_bite() -> None:
    states = [shared_memory_row(*seen).state for seen in ((0, 0, False), (GIB, GIB, False), (64 << 20, 60 << 20, True), (8 * GIB, 1, True), (8 * GIB, GIB, True))]  # fmt: skip
    assert states == [State.NOTE, State.NOTE, State.NOTE, State.NOTE, State.OK]
    assert [open_files_row(*limit).state for limit in ((64, 64), (1024, 4096), (65536, 65536), (-1, -1))] == [
        State.PROBLEM, State.NOTE, State.OK, State.OK,
    ]  # fmt: skip
    assert open_files_row(1024, 1 << 20).fix == "ulimit -n 4096"
    assert [size_text(size) for size in (64 << 20, 3 * GIB // 2)] == ["64 MiB", "1.5 GiB"]


def test_shared_memory_that_only_loader_workers_miss_is_a_note_that_says_so() -> None:
    only = "DataLoader workers cannot hand over batches; a run without them works"
    assert shared_memory_row(0, 0, False).text == f"/dev/shm is missing: {only}"
    assert shared_memory_row(GIB, GIB, False).text == f"/dev/shm cannot be written to: {only}"
    tiny = shared_memory_row(64 << 10, 64 << 10, True)
    assert tiny.text == f"/dev/shm 64 KiB, 64 KiB free: tiny, and {only}"
    assert "Remove" not in tiny.fix
    full = shared_memory_row(8 * GIB, 0, True)
    assert full.text == f"/dev/shm 8.0 GiB, 0 KiB free: full, and {only}"
    assert full.fix.startswith("Remove what is in it.")


def test_leftovers_are_found_and_named(tmp_path: Path) -> None:
    gone, here = 4_194_303, os.getpid()
    for process, launcher in ((11, gone), (12, here), (13, None)):
        (tmp_path / str(process)).mkdir()
        marker = f"SAMEBITS_NURSERY={launcher}-ab".encode() if launcher else b"HOME=/"
        (tmp_path / str(process) / "environ").write_bytes(b"A=1\0" + marker + b"\0")
    (tmp_path / str(here)).mkdir()
    assert orphaned_processes(tmp_path) == [11]
    (tmp_path / "shm").mkdir()
    for name in (f"torch_{gone}_1_0", f"torch_{here}_1_0", "other"):
        (tmp_path / "shm" / name).touch()
    assert orphaned_shared_memory(tmp_path / "shm", tmp_path) == [f"torch_{gone}_1_0"]
    row = leftover_row([11], ["torch_5_1_0"])
    assert (row.state, row.fix) == (
        State.NOTE,
        (
            "ps -o pid,user,cgroup,args -p 11, and kill what is yours and no container's; "
            "rm /dev/shm/torch_5_1_0, if no container has them"
        ),
    )
    assert "launcher is gone (11)" in row.text
    assert leftover_row([], ["samebits-0"], [tmp_path]).fix == "samebits clean"
    assert leftover_row([], []).text == "none"


def test_the_facts_are_the_last_line_and_an_interpreter_that_dies_is_told() -> None:
    told = '{"version": "2.13.0", "devices": [], "backends": ["gloo"]}'
    assert parse_facts(f"a library's words\n{told}\n", "", 0).backends == ("gloo",)
    assert parse_facts(told, "Segmentation fault", -11).backends == ("gloo",)
    assert parse_facts("", "Traceback\nImportError: libcudart.so.12", 1).error == "ImportError: libcudart.so.12"
    assert not parse_facts('{"error": "ImportError: no"}', "", 0).is_crashed
    assert parse_facts("", "", -11).is_crashed
    assert parse_facts("", "", -11).error == "the interpreter ended with exit code -11"


def test_the_report_lines_up_in_80_columns_without_colours() -> None:
    out = io.StringIO()
    long = "a sentence that is much too long for what is left of a line of eighty columns"
    report = Report(
        (ok("Python", "3.11.7"), note("open files", long, "ulimit -n 4096"), problem("torch", "gone", "pip")), CPU
    )
    report.show(Console(file=out, width=80, highlight=False))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines == [
        "A run would not work here: see torch.",
        "ok       Python      3.11.7",
        "note     open files  a sentence that is much too long for what is left of a line",
        "                     of eighty columns",
        "                     → ulimit -n 4096",
        "problem  torch       gone",
        "                     → pip",
    ]
    assert report.as_json()["ok"] is False


def test_where_stacks_cannot_be_read_the_way_out_is_told() -> None:
    assert stacks_row("").state is State.OK
    refused = stacks_row("the kernel does not let py-spy read other processes")
    assert refused.state is State.NOTE
    assert "asked by a signal" in refused.text
    assert "SYS_PTRACE" in refused.fix
    assert stacks_row("py-spy is not installed").fix == "pip install py-spy"
