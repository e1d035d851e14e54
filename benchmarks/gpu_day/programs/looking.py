"""What this machine has, as one line of JSON: asked in a process of its own, because asking torch starts the driver."""

import importlib.util
import json
import os
import platform
import shutil
from pathlib import Path

import torch

from samebits.machine.no_gpu import NO_GPU, why_none
from samebits.rank.transport.local.native import why_not

MODULES = ("pytest", "hypothesis", "psutil", "xdist", "sklearn", "triton", "accelerate", "transformers", "peft", "timm")
PROGRAMS = ("compute-sanitizer", "nvidia-smi")
DRIVER = Path("/proc/driver/nvidia/version")


def main() -> None:
    """Print it."""
    cuda = torch.cuda
    count = cuda.device_count() if cuda.is_available() else 0
    driver = DRIVER.read_text().splitlines()[0] if DRIVER.exists() else ""
    found = {
        "gpus": [cuda.get_device_name(number) for number in range(count)],
        "memory_bytes": cuda.get_device_properties(0).total_memory if count else 0,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip or "",
        "driver": driver,
        "python": platform.python_version(),
        "no_compiled": why_not(),
        "tools": [name for name in MODULES if importlib.util.find_spec(name)] + [name for name in PROGRAMS if shutil.which(name)],
        "why_none": "" if count or (why := why_none(os.environ)) is NO_GPU else f"{why.problem} {why.fix}",
        "is_pretended": hasattr(torch.ops.pretend, "counts") if count else False,
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
