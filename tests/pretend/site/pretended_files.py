"""The device files and the driver's list of a machine with GPUs, in a folder: what the launcher counts."""

import functools
import json
import os
from pathlib import Path

NAME = "Pretended H100"


def tell_why(no_gpu):
    """Let `samebits.machine.no_gpu` look there too."""
    place = _place()
    no_gpu.DEVICES, no_gpu.DRIVER_LIST = place / "dev", place / "gpus"


def _place():
    return Path(os.environ["PRETENDED_GPUS_BUILD"]) / f"machine-{os.environ['PRETENDED_GPUS']}"


def put_into(gpus):
    """Let `samebits.machine.gpus` look into the folder."""
    count = int(os.environ["PRETENDED_GPUS"])
    place = _place()
    where = {"devices": place / "dev", "driver_list": place / "gpus"}
    _make(place, count)
    gpus.count_gpus = functools.partial(gpus.count_gpus, **where)
    gpus.gpu_names = functools.partial(gpus.gpu_names, **where)


def build_for_cuda(torch_versions):
    """Let `samebits.machine.torch_versions` see a torch for GPUs."""
    torch_versions.torch_is_for = lambda: json.loads(os.environ.get("PRETENDED_BUILD", '{"cuda": "13.0"}'))


def _make(place, count):
    (place / "dev").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (place / "dev" / f"nvidia{number}").touch()
        folder = place / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True, exist_ok=True)
        text = f"Model: \t {NAME}\nGPU UUID: \t GPU-pretended-{number}\nDevice Minor: \t {number}\n"
        if not (folder / "information").exists():
            (folder / "information").write_text(text)
