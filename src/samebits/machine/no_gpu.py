"""Why no GPU is used, and what to do: from files where they tell, else in torch's own words, asked in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from samebits.machine.gpus import (
    DEVICES,
    DRIVER_LIST,
    answer_of_torch,
    counted,
    newer_driver,
    read_driver,
    uncounted,
)
from samebits.machine.torch_versions import torch_is_for

PCI = Path("/sys/bus/pci/devices")
INSTALL = "pip install --force-reinstall torch"
"""A build for CUDA, as the Python package index has it for Linux, in the place of one for CPUs."""
NVIDIA = "0x10de"
DISPLAYS = ("0x0300", "0x0302")
"""Classes of PCI devices: a VGA controller, a 3D controller."""
MEANT = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES by which people hide all GPUs on purpose."""
WHY = """
import torch
try:
    torch.cuda.init()
    print(f"torch sees {torch.cuda.device_count()}")
except Exception as error:
    print(str(error).splitlines()[0])
"""


class NoGpu(NamedTuple):
    """Why there is none, and what to do."""

    problem: str
    fix: str
    is_news: bool = False
    """Whether somebody who left the choice to samebits should hear it: a GPU is there, and was not hidden on purpose."""

    @property
    def note(self) -> str:
        """For somebody who left the choice to samebits; empty if there is nothing to say."""
        return f"{self.problem} The CPU computes. {self.fix}" if self.is_news else ""

    @property
    def in_python(self) -> NoGpu:
        """The same with what a program says instead of the command line's option."""
        fix = self.fix.replace("Start with --device cpu", 'Say device="cpu"')
        return self._replace(fix=fix.replace("start with --device cpu", 'say device="cpu"'))


NO_GPU = NoGpu("No GPU that the installed torch can use was found here.", "Start with --device cpu.")


def ask_why(variables: Mapping[str, str]) -> str:
    """The first sentence of what torch says when it is to use a GPU; empty if it does not answer."""
    lines = answer_of_torch(WHY, variables).strip().splitlines()
    return first_sentence(lines[-1]) if lines else ""


def first_sentence(text: str) -> str:
    """Without its full stop. A point inside of it ("e.g. this") is followed by a small letter."""
    return re.split(r"\.(?: (?=[A-Z])|$)", text.strip(), maxsplit=1)[0]


@dataclass(frozen=True)
class Signs:
    """What the machine shows of its GPUs without torch."""

    present: int
    """Device files that can be counted."""
    is_there: bool
    """Whether there is a GPU that torch could use, counted or not."""
    without_driver: bool
    """Whether there is one of NVIDIA's, but no driver."""
    driver: str
    """NVIDIA's, its version; empty if not known."""
    is_for: Mapping[str, str] = field(default_factory=dict)
    """What the installed torch was built for, with versions: `{"cuda": "12.8"}`."""


def signs_here() -> Signs:
    """Those of this machine."""
    is_for = torch_is_for()
    present, others = counted(DEVICES), uncounted(DEVICES, DRIVER_LIST, is_for)
    without_driver = not present and not others and has_nvidia(PCI)
    return Signs(present, bool(present or others or without_driver), without_driver, read_driver(), is_for)


def has_nvidia(pci: Path) -> bool:
    """Whether a GPU of NVIDIA's is on the bus, which also shows inside of containers that may not use it."""

    def read(device: Path, name: str) -> str:
        try:
            return (device / name).read_text().strip()
        except OSError:
            return ""

    return any(read(one, "vendor") == NVIDIA and read(one, "class").startswith(DISPLAYS) for one in pci.glob("*"))


def why_none(
    variables: Mapping[str, str], signs: Signs | None = None, ask: Callable[[Mapping[str, str]], str] = ask_why
) -> NoGpu:
    """Why there is no GPU to use, and what to do."""
    signs = signs or signs_here()
    the_gpu = f"the {signs.present} GPUs of this machine" if signs.present > 1 else "the GPU of this machine"
    chosen = variables.get("CUDA_VISIBLE_DEVICES")
    if not signs.is_there:
        return NO_GPU
    if not signs.is_for and not signs.without_driver:
        found = f"The installed torch is a CPU build, which cannot use {the_gpu}.", f"Install another one ({INSTALL})"
    elif signs.present and chosen is not None:
        found = f"CUDA_VISIBLE_DEVICES={chosen!r} hides {the_gpu}.", "Unset it"
    else:
        found = _of_the_driver(signs) or (
            _in_words(f"torch cannot use {the_gpu}", ask(variables)),
            "See `samebits doctor`",
        )
    is_meant = signs.present > 0 and chosen is not None and chosen.strip() in MEANT
    # A container for CPUs on a machine with GPUs.
    is_meant = is_meant or (signs.without_driver and not signs.is_for)
    return NoGpu(found[0], f"{found[1]}, or start with --device cpu.", not is_meant)


def _of_the_driver(signs: Signs) -> tuple[str, str] | None:
    cuda = signs.is_for.get("cuda", "")
    if newer := newer_driver(signs.driver, cuda):
        return (
            f"The NVIDIA driver {signs.driver} is too old for the installed torch, which is built for CUDA {cuda} and needs "
            f"{newer}."
        ), "Update the driver, install a torch for an older CUDA"
    if signs.without_driver:
        return "There is an NVIDIA GPU, but no driver for it.", "Install the driver, or let this container use the GPU"
    return None


def _in_words(problem: str, words: str) -> str:
    return f"{problem}: {words}." if words else f"{problem}."
