"""Many calls of `samebits` from one process that has imported it: each is forked, as a command of its own would run."""

import json
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

CALLS = """
import contextlib, importlib, json, os, sys
from pathlib import Path
from samebits.cli import main

for module, _ in main.COMMANDS.values():
    importlib.import_module(module)
answers = []
for number, words in enumerate(json.load(sys.stdin)):
    place = Path(str(number))
    place.mkdir()
    (place / "x.py").write_text("raise AssertionError('started')")
    if not (child := os.fork()):
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{number}.{name}", os.O_CREAT | os.O_WRONLY), descriptor)
        os.chdir(place)
        while words[0].partition("=")[0].isupper():
            name, _, os.environ[name] = words.pop(0).partition("=")
        sys.argv = ["samebits", *words]
        try:
            main.main()
        except SystemExit as ending:
            sys.stdout.flush()
            os._exit(ending.code or 0)
        finally:
            os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answers.append((code, Path(f"{number}.out").read_text(), Path(f"{number}.err").read_text(), sorted(os.listdir(place))))
json.dump(answers, sys.stdout)
"""


Answers = dict[tuple[str, ...], tuple[CompletedProcess[str], list[str]]]


def answers(place: Path, calls: list[tuple[str, ...]]) -> Answers:
    """What each call printed, and what is in its folder afterwards, where an `x.py` was that must not start.

    Args:
        place: an empty folder.
        calls: the words of each; `NAME=VALUE` before them are its environment.
    """
    done = subprocess.run(
        [sys.executable, "-c", CALLS],
        input=json.dumps(calls),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    each = (
        (CompletedProcess(words, code, out, err), left)
        for words, (code, out, err, left) in zip(calls, json.loads(done.stdout), strict=True)
    )
    return dict(zip(calls, each, strict=True))
