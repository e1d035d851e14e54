"""What kind of machine this is: enough to tell results of unlike machines apart, and nothing that names one machine."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

SIBLINGS = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list"


@dataclass(frozen=True)
class MachineKind:
    """Results are kept and compared by it."""

    processor: str
    """As /proc/cpuinfo says it; where clouds shorten the name, family and model tell."""
    family: str
    num_cpus: int
    """What Linux shows; two may be threads of one core."""
    threads_per_core: int
    """As far as the machine tells."""
    kernel: str
    """Linux's first two numbers."""

    @property
    def name(self) -> str:
        """Of the file, such as `amd-epyc-26-2-2x1-linux-6.18`."""
        told = f"{self.processor} {self.family} {self.num_cpus}x{self.threads_per_core} linux-{self.kernel}"
        return re.sub(r"[^a-z0-9.]+", "-", told.lower()).strip("-")

    @property
    def said(self) -> str:
        """For people."""
        threads = "" if self.threads_per_core == 1 else f", {self.threads_per_core} threads of a core each"
        return f"{self.num_cpus} x {self.processor} (family {self.family.replace('-', ', model ')}{threads}), Linux {self.kernel}"


def kind_of(cpuinfo: str, siblings: str, release: str) -> MachineKind:
    """From the texts of /proc/cpuinfo and of the topology, and the kernel's version."""
    found: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    count = sum(line.startswith("processor") for line in cpuinfo.splitlines())
    processor = re.sub(r"\((r|tm)\)|\bcpu\b|@.*", " ", found.get("model name", platform.machine()), flags=re.IGNORECASE)
    family = "-".join(found.get(name, "0") for name in ("cpu family", "model"))
    kernel = ".".join(release.split(".")[:2])
    return MachineKind(" ".join(processor.split()), family, count or 1, num_listed(siblings), kernel)


def num_listed(text: str) -> int:
    """How many numbers a list of the kernel has, such as `0,2` or `0-1`; 1 when there is none."""
    try:
        edges = [[int(word) for word in part.split("-")] for part in text.strip().split(",") if part]
    except ValueError:
        return 1
    return sum(edge[-1] - edge[0] + 1 for edge in edges) or 1


def this_kind() -> MachineKind:
    """Of the machine that this runs on."""
    cpuinfo, siblings = (Path(name).read_text() if Path(name).exists() else "" for name in ("/proc/cpuinfo", SIBLINGS))
    return kind_of(cpuinfo, siblings, os.uname().release)
