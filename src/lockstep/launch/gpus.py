"""How many CUDA devices a rank will see, found without torch and without a driver library.

CUDA_VISIBLE_DEVICES decides when it is set; otherwise the device files, which a container gets for its own devices
only, and the driver's list where there are no device files.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Mapping
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
    """CUDA takes the entries up to the first invalid one."""
    count = 0
    for entry in text.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        count += 1
    return count


def gpu_names(variables: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The names of the devices that this process may use, in the order of their indices; empty when unknown.

    Asks nvidia-smi, which torch need not be imported for (0.1 s). CUDA counts the fastest first unless
    CUDA_DEVICE_ORDER=PCI_BUS_ID, so with different devices the order is known only then.
    """
    if count == 0:
        return ()
    try:
        asked = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return names_from(told, variables, count)


def names_from(told: str, variables: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The same from the text `0, GPU-12ab..., NVIDIA H200` of nvidia-smi, one line for each device of the machine."""
    rows = [[part.strip() for part in line.split(",", 2)] for line in told.splitlines() if line.count(",") >= 2]
    names = [name for _, _, name in rows]
    if len(set(names)) > 1 and variables.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
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
