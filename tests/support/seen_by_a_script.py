"""Everything that a script can see of how its run was started, and of how its rank ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.launching import MARK, Finished

SCRIPT = """
    import atexit, ctypes, gc, json, multiprocessing, os, signal, sys, tempfile, threading
    from pathlib import Path
    import torch, samebits

    def process(pid):
        folder = Path(f"/proc/{pid}")
        command, variables = ((folder / name).read_text().split("\\0")[:-1] for name in ("cmdline", "environ"))
        name = (folder / "comm").read_text()
        return [command, dict(word.split("=", 1) for word in variables), os.readlink(folder / "cwd"), name]

    nursery = os.getppid()
    launcher = int(Path(f"/proc/{nursery}/stat").read_text().rpartition(")")[2].split()[1])
    run = samebits.init(seed=1, lanes=2)
    told = {
        "variables": dict(os.environ),
        "path": sys.path,
        "argv": sys.argv,
        "started as": sys.orig_argv,
        "flags": repr(sys.flags),
        "main": [__name__, __file__, repr(__spec__)],
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()],
        "product": torch.mm(torch.rand(300, 300), torch.rand(300, 300)).sum().item().hex(),
        "tasks": [len(os.listdir(f"/proc/{one}/task")) for one in ("self", nursery, launcher)],
        "handlers": [repr(signal.getsignal(number)) for number in range(1, 32)],
        "garbage": [gc.isenabled(), gc.get_threshold()],
        "method": multiprocessing.get_start_method(),
        "place": [os.getcwd(), tempfile.gettempdir()],
        "streams": [sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.encoding],
        "hash": hash("a text"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "random": torch.rand(3).tolist(),
        "umask": os.umask(0o77),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "nursery": process(nursery),
        "launcher": process(launcher),
    }
    Path(sys.argv[1]).write_text(json.dumps(told))

    class Last:
        def __del__(self):
            print("object", flush=True)

    def other():
        threading.main_thread().join()
        print("thread", flush=True)

    last, kept = Last(), open("kept.txt", "w")
    kept.write("buffered")
    atexit.register(print, "handler", flush=True)
    threading.Thread(target=other).start()
    ctypes.CDLL(None).printf(b"buffered in C\\n")
    sys.exit(int(sys.argv[2]))
"""
ENDS = ("thread", "handler", "object", "buffered in C")
OF_ONE_RUN = (MARK, "SAMEBITS_", "TORCHELASTIC_", "MASTER_PORT")


def seen(place: Path, ended: Finished) -> dict[str, Any]:
    """What the script has written as told.json, without what differs from run to run, and how it ended."""
    told: dict[str, Any] = json.loads((place / "told.json").read_text())
    for variables in (told["variables"], told["nursery"][1], told["launcher"][1]):
        variables.update((name, "") for name in variables if name.startswith(OF_ONE_RUN))
    for words in (told["nursery"][0], told["started as"]):
        del words[4:]  # a descriptor, the modules, and the launcher's number
    said = [line for line in ended.out.splitlines() if line in ENDS]
    return told | {"end": said, "kept": (place / "kept.txt").read_text()}
