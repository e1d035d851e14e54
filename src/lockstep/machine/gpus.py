"""How many CUDA devices a rank will see: ROCm's too, which torch calls by the same name.

Device files are counted, which costs nothing, and CUDA_VISIBLE_DEVICES chooses among them. Where a GPU has none that can be
counted (WSL2, ROCm, Jetson, a container), or is divided by MIG, torch is asked, in a process of its own: asking would start the
driver in this one. Why there are none: `no_gpu`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lockstep.machine.driver import newer_driver, read_driver

DEVICES = Path("/dev")
DRIVER_LIST = Path("/proc/driver/nvidia/gpus")
UNCOUNTED = ("dxg", "kfd", "nvmap")
"""Device files of GPUs whose number they do not tell: WSL2's, ROCm's, Jetson's."""
WSL_CUDA = Path("/usr/lib/wsl/lib/libcuda.so.1")
"""Where Windows lends a GPU of NVIDIA's; `dxg` is there with any GPU."""
ASK_S = 120.0
UNKNOWN_BUILD = {"cuda": ""}
"""Of a torch that does not say: it may be for GPUs."""
QUESTION = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
"""NVML counts devices also where the driver is too old for this torch, so the number alone says nothing."""


def answer_of_torch(question: str, variables: Mapping[str, str]) -> str:
    """What a program prints that asks torch, in an interpreter of its own; empty if it does not end well."""
    subprocess = importlib.import_module("subprocess")
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-c", question],
            capture_output=True, text=True, timeout=ASK_S, env={**variables}, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return str(done.stdout)
    return ""


def ask_torch(variables: Mapping[str, str]) -> int:
    """How many devices torch sees; 0 if it does not answer."""
    with suppress(ValueError, IndexError):
        return int(answer_of_torch(QUESTION, variables).split()[-1])
    return 0


def count_gpus(
    variables: Mapping[str, str],
    devices: Path = DEVICES,
    driver_list: Path = DRIVER_LIST,
    ask: Callable[[Mapping[str, str]], int] = ask_torch,
    is_for: Mapping[str, str] | None = None,
) -> int:
    """The number of CUDA devices that this process may use; 0 without any."""
    present, chosen = counted(devices), variables.get("CUDA_VISIBLE_DEVICES")
    if not present:
        others = uncounted(devices, driver_list, torch_is_for() if is_for is None else is_for)
        return ask(variables) if others else 0
    if has_parts(driver_list) or (chosen or "").strip().startswith("MIG-"):
        return ask(variables)
    return present if chosen is None else _chosen(chosen, present, _uuids(driver_list))


def usable_gpus(variables: Mapping[str, str]) -> int:
    """Those that the installed torch can use. Torch is asked where the driver seems too old: it may have newer libraries."""
    built_for = torch_is_for()
    if not {"cuda", "rocm"} & {*built_for}:
        return 0
    count = count_gpus(variables)
    return ask_torch(variables) if count and newer_driver(read_driver(), built_for.get("cuda", "")) else count


def counted(devices: Path) -> int:
    """The device files of NVIDIA's GPUs."""
    return len([path for path in devices.glob("nvidia[0-9]*") if path.name[6:].isdigit()])


def uncounted(devices: Path, driver_list: Path, is_for: Mapping[str, str], wsl: Path = WSL_CUDA) -> list[str]:
    """Signs of GPUs that may be used or not: a driver's list shows in containers too that may not.

    A laptop with an AMD processor has `kfd`, and Windows `dxg` with any GPU: they count where a torch could use what is there.
    """
    possible = {"kfd": "rocm" in is_for, "dxg": wsl.exists(), "nvmap": True}
    found = [name for name in UNCOUNTED if possible[name] and (devices / name).exists()]
    return [*found, *(["driver"] if driver_list.is_dir() and any(driver_list.iterdir()) else [])]


def has_parts(driver_list: Path) -> bool:
    """Whether a GPU is divided into MIG devices, of which CUDA shows another number than of GPUs."""
    return any(driver_list.parent.glob("capabilities/gpu*/mig/gi*"))


def _chosen(text: str, present: int, uuids: Sequence[str]) -> int:
    """Count the entries that CUDA takes: those up to the first invalid one; none if one comes twice."""
    taken: list[str] = []
    for entry in map(str.strip, text.split(",")):
        number = re.match("[0-9]+", entry)
        if (int(number[0]) >= present) if number else not _is_uuid(entry, uuids):
            break
        taken.append(str(int(number[0])) if number else entry)
    return min(len(taken), present) if len({*taken}) == len(taken) else 0


def _is_uuid(entry: str, uuids: Sequence[str]) -> bool:
    """Whether this begins the UUID of a GPU, as far as these are known."""
    return entry.startswith("GPU-") and (not all(uuids) or any(uuid.startswith(entry) for uuid in uuids))


def _uuids(driver_list: Path) -> list[str]:
    return [one.get("GPU UUID", "") for one in _listed(driver_list)] or [""]


def _listed(driver_list: Path) -> list[dict[str, str]]:
    """What the driver says about each GPU."""
    found = []
    for file in sorted(driver_list.glob("*/information")):
        with suppress(OSError):
            found.append(_information(file.read_text()))
    return found


def gpu_names(
    variables: Mapping[str, str], count: int, devices: Path = DEVICES, driver_list: Path = DRIVER_LIST
) -> tuple[str, ...]:
    """The names of the devices that this process may use, in the order of their indices; empty when unknown.

    Read from the driver's list, which costs nothing; nvidia-smi can take seconds. CUDA counts the fastest first unless
    CUDA_DEVICE_ORDER=PCI_BUS_ID, so with different devices the order is known only with it.
    """
    found = _listed(driver_list)
    here = [one for one in found if (devices / f"nvidia{one.get('Device Minor', '')}").exists()] or found
    rows = [(str(index), one.get("GPU UUID", ""), one.get("Model", "")) for index, one in enumerate(here)]
    return names_from(rows, variables, count)


def _information(text: str) -> dict[str, str]:
    """Parse `Model: NVIDIA H200` and the like, one per line."""
    pairs = [line.partition(":") for line in text.splitlines()]
    return {name.strip(): value.strip() for name, _, value in pairs}


def names_from(rows: Sequence[tuple[str, str, str]], variables: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The same from (index, UUID, name) of each device of the machine, in bus order."""
    names = [name for _, _, name in rows]
    if not all(names) or (len(set(names)) > 1 and variables.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"):
        return ()
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(names[:count])
    chosen = [entry.strip() for entry in visible.split(",")][:count]
    found = [next((name for index, uuid, name in rows if _means(entry, index, uuid)), "") for entry in chosen]
    return tuple(found) if all(found) else ()


def _means(entry: str, index: str, uuid: str) -> bool:
    return entry == index or (entry.startswith("GPU-") and uuid.startswith(entry))


def torch_is_for() -> dict[str, str]:
    """What the installed torch was built for besides CPUs, with versions: `{"cuda": "12.8"}`, by its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return UNKNOWN_BUILD
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return UNKNOWN_BUILD
    return built_for(text)


def built_for(version_file: str) -> dict[str, str]:
    """The same from the text of torch's version.py."""
    found: list[tuple[str, str]] = re.findall(r"^(cuda|hip|rocm|xpu)\b[^=\n]*=\s*(.+?)\s*$", version_file, re.MULTILINE)
    if not found:
        return UNKNOWN_BUILD
    names = {"hip": "rocm"}
    return {names.get(name, name): value.strip("'\"") for name, value in found if value != "None"}
