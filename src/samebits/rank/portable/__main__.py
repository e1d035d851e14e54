"""Print this process's known answers as JSON; with --record, write them down as those of this torch.

Record them only where all emulated CPUs agree (tests/portable).
"""

import json
import platform
import sys

from samebits.rank.portable.known_answers import FILE, answers, torch_version
from samebits.rank.portable.process import be_portable


def main(words: list[str]) -> None:
    be_portable(1, is_launched=False, checks=False)
    version, found = torch_version(), answers()
    if words == ["--record"]:
        table = {**(json.loads(FILE.read_text()) if FILE.exists() else {}), version: found}
        FILE.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")
    print(json.dumps({"torch": version, "libc": " ".join(platform.libc_ver()), "answers": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
