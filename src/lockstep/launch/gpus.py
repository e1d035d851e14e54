"""How many CUDA devices a rank will see, found without torch and without a driver library.

CUDA_VISIBLE_DEVICES decides when it is set; otherwise the device files, which a container gets for its own devices
only, and the driver's list where there are no device files.
"""

from __future__ import annotations

import importlib.util
import re
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
