"""The documents of a state, `state.json`, as far as they can be read without torch."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.checkpoint.manifest import CHANGED, DOCUMENTS, Manifest, damage_of
from lockstep.checkpoint.saved_counters import wrong_counters
from lockstep.checkpoint.unique_json import loads
from lockstep.errors import UsageError
from lockstep.regular_file import read_regular

RUN = "the run"
PLACE = "place of the data set"
STREAMS = ("random numbers", "random numbers of the epoch")


@dataclass(frozen=True)
class Documents:
    """What a state says besides tensors; still encoded."""

    by_label: Mapping[str, Any]
    entries: Mapping[str, Any]
    """By optimizer: what it keeps for each parameter."""

    @property
    def counters(self) -> Mapping[str, Any]:
        """Where the run was."""
        counters: Mapping[str, Any] = plain(self.by_label[RUN])
        return counters

    def labelled(self, kind: str) -> list[tuple[str, Mapping[str, Any]]]:
        """`optimizer`, or `optimizer1`, `optimizer2` where there are several, with what is said of each."""
        return [(label, told) for label, told in self.by_label.items() if label.rstrip("0123456789") == kind]

    def named(self) -> list[tuple[str, bool]]:
        """What the script named when it saved: the name, and whether it is an object or a value."""
        return [(label[:-1], bool(told["object"])) for label, told in self.by_label.items() if label.endswith("=")]


def read_documents(place: Path, manifest: Manifest) -> Documents:
    """Read and check them.

    Raises:
        UsageError: when the file is missing or damaged, or holds what lockstep does not write.
    """
    if DOCUMENTS not in manifest.files:
        raise UsageError(f"{place} is not a state: its manifest does not name {DOCUMENTS}.", CHANGED)
    if problem := damage_of(place / DOCUMENTS, manifest.files[DOCUMENTS]):
        raise problem
    try:
        told = loads(read_regular(place / DOCUMENTS, follow=False))
        documents = Documents(dict(told["documents"]), dict(told["entries"]))
        wrong = wrong_counters(documents.counters)
    except OSError as error:
        raise UsageError(f"{place / DOCUMENTS} cannot be read ({error.strerror}).", "Check the path.") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error):
        wrong = "lockstep does not write such a file"
    if wrong:
        raise UsageError(f"{place / DOCUMENTS} cannot be trusted: {wrong}.", CHANGED)
    return documents


def plain(value: Any) -> Any:
    """A value with its tuples as lists and its tagged numbers as numbers; everything else stays as it is encoded."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value.get("$"):
        case None:
            return {key: plain(item) for key, item in value.items()}
        case "float":
            return struct.unpack(">d", bytes.fromhex(value["bits"]))[0]
        case "tuple":
            return [plain(item) for item in value["items"]]
    return value
