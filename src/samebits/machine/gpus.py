"""How many CUDA devices a rank will see: ROCm's too, which torch calls by the same name.

Device files are counted, which costs nothing, and CUDA_VISIBLE_DEVICES chooses among them. Where a GPU has none that can be
counted (WSL2, ROCm, Jetson, a container), or is divided by MIG, torch is asked, in a process of its own: asking would start the
driver in this one. Why there are none: `no_gpu`.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from samebits.machine.processes import interpreter
from samebits.machine.torch_versions import torch_is_for

DEVICES = Path("/dev")
DRIVER_LIST = Path("/proc/driver/nvidia/gpus")
UNCOUNTED = ("dxg", "kfd", "nvmap")
"""Device files of GPUs whose number they do not tell: WSL2's, ROCm's, Jetson's."""
WSL_CUDA = Path("/usr/lib/wsl/lib/libcuda.so.1")
"""Where Windows lends a GPU of NVIDIA's; `dxg` is there with any GPU."""
_NUMBERS = re.compile(r"\s*(-?\d+\s*(,\s*-?\d+\s*)*)?")
"""What CUDA_VISIBLE_DEVICES is as a rule; empty for none."""
ASK_S = 120.0
QUESTION = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
"""NVML counts devices also where the driver is too old for this torch, so the number alone says nothing."""


def answer_of_torch(question: str, variables: Mapping[str, str]) -> str:
    """What a program prints that asks torch, in an interpreter of its own; empty if it does not end well."""
    # Imported here: few commands ask, and the others start faster without it.
    subprocess = importlib.import_module("subprocess")
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        # -P: a torch.py in the working directory is not torch.
        done = subprocess.run(
            [interpreter(), "-P", "-W", "ignore", "-c", question],
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
    """The number of CUDA devices that this process may use; 0 without any.

    Torch is asked where device files do not tell: where a GPU has none, is divided, or is chosen by a name.
    """
    present, chosen = counted(devices), variables.get("CUDA_VISIBLE_DEVICES")
    if not present:
        others = uncounted(devices, driver_list, torch_is_for() if is_for is None else is_for)
        return ask(variables) if others else 0
    if has_parts(driver_list) or not _NUMBERS.fullmatch(chosen or ""):
        return ask(variables)
    return present if chosen is None else _chosen(chosen, present)


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


def _chosen(text: str, present: int) -> int:
    """Count the numbers that CUDA takes: those up to the first that is not there; none if one comes twice."""
    numbers = [int(entry or -1) for entry in text.split(",")]
    taken = list(itertools.takewhile(lambda number: 0 <= number < present, numbers))
    return len(taken) if len({*taken}) == len(taken) else 0


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
    names = [one.get("Model", "") for one in here]
    if len({*names}) == 1:
        return (names[0],) * count if all(names) else ()
    chosen, order = variables.get("CUDA_VISIBLE_DEVICES"), variables.get("CUDA_DEVICE_ORDER")
    if not all(names) or order != "PCI_BUS_ID" or not _NUMBERS.fullmatch(chosen or ""):
        return ()
    numbers = range(len(names)) if chosen is None else map(int, filter(None, chosen.split(",")))
    return tuple(names[number] for number in itertools.islice(numbers, count) if number < len(names))


def _information(text: str) -> dict[str, str]:
    """Parse `Model: NVIDIA H200` and the like, one per line."""
    pairs = [line.partition(":") for line in text.splitlines()]
    return {name.strip(): value.strip() for name, _, value in pairs}


# NVIDIA's driver


VERSION_FILE = Path("/proc/driver/nvidia/version")
OLDEST = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""By major version of CUDA, the oldest Linux driver (NVIDIA's "CUDA Compatibility", minor version compatibility)."""


def read_driver(file: Path = VERSION_FILE) -> str:
    """`535.104.05`; empty without a driver."""
    try:
        return parse_driver(file.read_text())
    except OSError:
        return ""


def parse_driver(text: str) -> str:
    """The version in the text of /proc/driver/nvidia/version."""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else ""


def newer_driver(driver: str, cuda: str) -> str:
    """The oldest version that would do, `525.60`, where this one is older; empty where it fits or nobody can tell.

    Args:
        driver: its version, or empty.
        cuda: the version that torch was built for, `12.8`; empty if for none.
    """
    oldest = OLDEST.get(int(cuda.partition(".")[0])) if cuda[:1].isdigit() else None
    has = tuple(int(part) for part in driver.split(".")[:2]) if driver else ()
    return f"{oldest[0]}.{oldest[1]}" if oldest is not None and has and has < oldest else ""
