"""How many CUDA devices a rank will see: ROCm's too, which torch calls by the same name.

Device files are counted, which costs nothing, and CUDA_VISIBLE_DEVICES chooses among them. Where a GPU has none that can be
counted (WSL2, ROCm, Jetson), or MIG devices are chosen, torch is asked, in a process of its own: asking would start the
driver in this one.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

DEVICES = Path("/dev")
DRIVER_LIST = Path("/proc/driver/nvidia/gpus")
UNCOUNTED = ("dxg", "kfd", "nvmap")
"""Device files of GPUs whose number they do not tell: WSL2's, ROCm's, Jetson's."""
CUDA_WHEELS = "pip install torch --index-url https://download.pytorch.org/whl/cu128"
NO_GPU = "No GPU that the installed torch can use was found here.", "Start with --device cpu."
ASK_S = 120.0
QUESTION = "import torch; print(torch.cuda.device_count())"


def ask_torch(variables: Mapping[str, str]) -> int:
    """How many devices torch sees, asked in an interpreter of its own; 0 if it does not answer."""
    subprocess = importlib.import_module("subprocess")
    with suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
        done = subprocess.run(
            [sys.executable, "-P", "-c", QUESTION],
            capture_output=True, text=True, timeout=ASK_S, env={**variables}, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return int(done.stdout.split()[-1])
    return 0


def count_gpus(
    variables: Mapping[str, str],
    devices: Path = DEVICES,
    driver_list: Path = DRIVER_LIST,
    ask: Callable[[Mapping[str, str]], int] = ask_torch,
) -> int:
    """The number of CUDA devices that this process may use; 0 without any."""
    present, chosen = _counted(devices, driver_list), variables.get("CUDA_VISIBLE_DEVICES")
    if not present:
        return ask(variables) if _uncounted(devices) else 0
    if chosen is None:
        return present
    return ask(variables) if chosen.strip().startswith("MIG-") else _chosen(chosen, present)


def usable_gpus(variables: Mapping[str, str]) -> int:
    """Those that the installed torch can use."""
    return count_gpus(variables) if torch_speaks_cuda() else 0


def _counted(devices: Path, driver_list: Path) -> int:
    found = len([path for path in devices.glob("nvidia[0-9]*") if path.name[6:].isdigit()])
    return found or (len(list(driver_list.iterdir())) if driver_list.is_dir() else 0)


def _uncounted(devices: Path) -> list[str]:
    return [name for name in UNCOUNTED if (devices / name).exists()]


def _chosen(text: str, present: int) -> int:
    """Count the entries that CUDA takes: those up to the first invalid one; none if one comes twice."""
    taken: list[str] = []
    for entry in map(str.strip, text.split(",")):
        number = re.match("[0-9]+", entry)
        if (int(number[0]) >= present) if number else not entry.startswith("GPU-"):
            break
        taken.append(str(int(number[0])) if number else entry)
    return min(len(taken), present) if len({*taken}) == len(taken) else 0


def why_none(
    variables: Mapping[str, str],
    devices: Path = DEVICES,
    driver_list: Path = DRIVER_LIST,
    is_cpu_build: Callable[[], bool] = lambda: not torch_speaks_cuda(),
) -> tuple[str, str]:
    """Why there is no GPU to use, and what to do."""
    present, chosen = _counted(devices, driver_list), variables.get("CUDA_VISIBLE_DEVICES")
    gpus = f"the {present} GPUs" if present > 1 else "the GPU"
    if (present or _uncounted(devices)) and is_cpu_build():
        wheels = CUDA_WHEELS if present else "https://pytorch.org/get-started/locally has the one for it"
        return f"The installed torch is a CPU build, which cannot use {gpus} of this machine.", (
            f"Install another one ({wheels}), or start with --device cpu."
        )
    if present and chosen is not None:
        return f"CUDA_VISIBLE_DEVICES={chosen!r} hides {gpus} of this machine.", "Unset it, or start with --device cpu."
    return NO_GPU


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
    """Whether the installed torch was built for CUDA or ROCm, by its version file; True when that cannot be told."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return True
    return speaks_cuda(text)


def speaks_cuda(version_file: str) -> bool:
    """The same from the text of torch's version.py: True when it does not say."""
    told = re.findall(r"^(?:cuda|hip)\b[^=\n]*=\s*(.+?)\s*$", version_file, re.MULTILINE)
    return not told or any(value != "None" for value in told)
