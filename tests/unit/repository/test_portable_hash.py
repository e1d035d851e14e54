"""`scripts/portable_hash.py`, and the table in docs/hashes.md that its lines make."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))  # in no package

from portable_hash import table_line  # noqa: E402

TOLD = {"torch": "9.8.7", "libc": "glibc 2.99", "answers": {"sums": "aa", "products": "bb"}}


def test_a_line_has_a_cell_for_each_column_of_the_page_and_names_what_differs() -> None:
    rows = [line for line in (ROOT / "docs/hashes.md").read_text().splitlines() if line.startswith("| ")]
    columns, *cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    known = {"sums": "aa", "products": "bb"}
    assert table_line(("A", "native"), TOLD, known, "123456789abc") == (
        "| A | native | 9.8.7 | 2.99 | 2 of 2 | 123456789abc |"
    )
    for recorded, said in (({**known, "sums": "cc"}, "1 of 2; not sums"), ({}, "none recorded")):
        assert table_line(("A", "native"), TOLD, recorded, "") == f"| A | native | 9.8.7 | 2.99 | {said} | not run |"
    assert {len(row) for row in cells} == {len(columns)} == {6}
    bits: dict[str, set[str]] = {}
    for row in cells:
        bits.setdefault(row[2], set()).add(row[5])
    for hashes in bits.values():
        assert len(hashes - {"not run"}) == 1, "one torch, one hash"
        assert all(re.fullmatch("[0-9a-f]{12}", one) for one in hashes - {"not run"})
