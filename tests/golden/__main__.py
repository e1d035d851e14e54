"""See the package."""

from __future__ import annotations

import argparse
import sys

from samebits.testing.ranks import preload
from tests.golden import __doc__ as text
from tests.golden.cases import CASES
from tests.golden.records import differences, record_file, recorded, write


def main() -> int:
    parser = argparse.ArgumentParser("tests.golden", None, text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", choices=[[], *(case.name for case in CASES)])
    parser.add_argument("--check", action="store_true", help="compare with the record, and write nothing")
    options = parser.parse_args()
    preload("sklearn.datasets")
    record = recorded() if options.check else {}
    if options.check and not record:
        print(f"no record for this kind of machine ({record_file().name}): only rows are compared with each other")
    wrong = 0
    for case in CASES:
        if options.cases and case.name not in options.cases:
            continue
        found, lines = differences(case, record.get(case.name))
        refused = f"; refused: {', '.join(found['refused'])}" if found["refused"] else ""
        print(f"{case.name}: {'DIFFERS' if lines else 'ok'}{refused}", *lines, sep="\n  ", flush=True)
        wrong += bool(lines)
        if not options.check and not lines:
            write({case.name: found})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
