"""A name of what no state holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Named:
    """Something of the script that changes, or may, and that no state holds."""

    name: str
    where: str
    """File and line; empty where it is no single line's."""
    advice: str
    kind: str

    def sentence(self) -> str:
        """For the person whose script it is."""
        place = f"{self.where}: " if self.where else ""
        return f"{place}no state holds {self.name}, so a resumed run begins with it anew; {self.advice}."
