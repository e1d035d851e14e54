"""Words of the recordings that ranks make for `samebits verify` and that `verify/` reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

AT_END = 1 << 62
"""The step number of what was recorded after the last step: above all steps, so that sorting works."""
NAN_MARK = " nan"
"""Follows the hash of a tensor with a NaN in it."""


@dataclass(frozen=True)
class CarriedTensor:
    """The first such tensor on which losses depend."""

    shape: tuple[int, ...]
    dtype: str
    made_at: str
    """`file:line` of the script."""
    used_at: str
    name: str = ""
    """The variable or attribute that holds it, where one was found."""

    @property
    def sentence(self) -> str:
        """What happens, without a capital letter or a full stop."""
        size = " x ".join(map(str, self.shape)) or "a single number"
        called = f" `{self.name}`" if self.name else ""
        return (
            f"a tensor{called} ({self.dtype}, {size}) that one lane made (line {self.made_at}) is used by the next lane (line "
            f"{self.used_at})"
        )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def read_carried_tensor(path: Path) -> CarriedTensor | None:
    """Read what a run wrote; None when its lanes carry nothing on."""
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    return CarriedTensor(**{**record, "shape": tuple(record["shape"])})
