"""What this machine's processor is, as far as the bits of a sum may depend on it; read without torch."""

from __future__ import annotations

import re
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
KINDS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve", "sve2", "vsx")
"""The flags by which libraries choose their kernels."""


def model_and_instructions(cpuinfo: Path = CPUINFO) -> tuple[str, str]:
    """The model's name and the instruction sets that libraries choose kernels by; empty where the kernel does not say."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return "", ""
    names = dict(re.findall(r"^(model name|flags|Features|cpu)\s*:\s*(.*)$", text, re.MULTILINE))
    flags = set((names.get("flags") or names.get("Features") or "").split())
    return names.get("model name") or names.get("cpu") or "", " ".join(kind for kind in KINDS if kind in flags)
