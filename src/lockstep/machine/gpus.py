"""How many CUDA devices a rank will see, found without torch and without a driver library.

CUDA_VISIBLE_DEVICES decides when it is set; otherwise the device files, which a container gets only for its own
devices, and the driver's list where there are no device files.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

DEVICES = Path("/dev")
DRIVER_LIST = Path("/proc/driver/nvidia/gpus")


def count_gpus(variables: Mapping[str, str], devices: Path = DEVICES, driver_list: Path = DRIVER_LIST) -> int:
    """The number of CUDA devices that this process may use; 0 without any."""
    present = len([path for path in devices.glob("nvidia[0-9]*") if path.name[6:].isdigit()])
    if not present and driver_list.is_dir():
        present = len(list(driver_list.iterdir()))
    chosen = variables.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not present:
        return present
    return _chosen(chosen)


def _chosen(text: str) -> int:
    """Count the entries that CUDA takes: those up to the first invalid one."""
    count = 0
    for entry in text.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        count += 1
    return count


def gpu_names(
    variables: Mapping[str, str], count: int, devices: Path = DEVICES, driver_list: Path = DRIVER_LIST
) -> tuple[str, ...]:
    """The names of the devices that this process may use, in the order of their indices; empty when unknown.

    Read from the driver's list, which costs nothing; nvidia-smi can take seconds. CUDA counts the fastest first unless
    CUDA_DEVICE_ORDER=PCI_BUS_ID, so with different devices the order is known only with it.
    """
    found = []
    for file in sorted(driver_list.glob("*/information")):
        with suppress(OSError):
            found.append(_information(file.read_text()))
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


def torch_speaks_cuda() -> bool:
    """Whether the installed torch was built for CUDA, read from its version file; True when that cannot be told."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return True
    return re.search(r"^cuda\b[^=\n]*=\s*None\s*$", text, re.MULTILINE) is None
