"""The records: one file for each kind of machine, with the digests of every case."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.kinds import this_kind
from tests.golden.cases import Case, Digests, Refused

RECORDS = Path(__file__).parent / "records"


def record_file() -> Path:
    """Of this kind of machine. The standard library is what examples/gpt.py learns, so Python's version counts too."""
    kind = this_kind()
    told = f"{kind.processor}-{kind.family}-{torch.backends.cpu.get_cpu_capability()}"
    versions = f"torch-{torch.__version__}-python-{platform.python_version()}"
    return RECORDS / (re.sub(r"[^a-z0-9.]+", "-", f"{told}-{versions}".lower()) + ".json")


def recorded() -> dict[str, Any]:
    """What each case came to on this kind of machine; empty where nobody has run them."""
    path = record_file()
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write(found: Mapping[str, Any]) -> None:
    """Keep these, beside what was recorded of other cases."""
    RECORDS.mkdir(exist_ok=True)
    record_file().write_text(json.dumps(recorded() | found, indent=1, sort_keys=True) + "\n")


def differences(case: Case, record: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Run all rows of a case; returns its record, and a line for each row that is not as the record, or the first row, is.

    A row may show less than the first one, and never anything else.
    """
    first: Digests = {}
    refused: list[str] = []
    lines: list[str] = []
    for way in case.ways:
        try:
            found = case.run(way)
        except Refused:
            refused.append(str(way))
            continue
        first = first or found
        expected = record["digests"] if record else first
        lines += [
            f"{case.name} on {way}: {name} is {value}, not {expected.get(name)}"
            for name, value in found.items()
            if value != expected.get(name)
        ]
        if not way.is_staged:
            lines += [f"{case.name} on {way}: {name} is missing" for name in expected.keys() - found.keys()]
    expected_to_refuse = [str(way) for way in case.ways if record and str(way) in record["refused"]]
    if record and refused != expected_to_refuse:
        lines.append(f"{case.name} is refused on {refused}, not on {expected_to_refuse}")
    return {"digests": first, "refused": refused}, lines
