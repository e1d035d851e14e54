"""Most tests fork their launchers from a process that has imported torch; what a script sees must not tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import launching
from tests.support.launching import MARK, kill, run_script, start, until, write_script

pytestmark = pytest.mark.ranks

SCRIPT = """
    import atexit, ctypes, gc, json, multiprocessing, os, signal, sys, tempfile, threading
    from pathlib import Path
    import torch, lockstep

    def process(pid):
        folder = Path(f"/proc/{pid}")
        environ = dict(word.split("=", 1) for word in (folder / "environ").read_text().split("\\0") if word)
        return [(folder / "cmdline").read_text().rstrip("\\0").split("\\0"), environ, os.readlink(folder / "cwd")]

    nursery = os.getppid()
    launcher = int(Path(f"/proc/{nursery}/stat").read_text().rpartition(")")[2].split()[1])
    run = lockstep.init(seed=1, lanes=2)
    told = {
        "variables": dict(os.environ),
        "path": sys.path,
        "argv": sys.argv,
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
OF_ONE_RUN = (MARK, "LOCKSTEP_", "TORCHELASTIC_", "MASTER_PORT")


@pytest.mark.parametrize(("threads", "code"), [("1", 0), ("2", 3)])
def test_a_script_cannot_tell_whether_its_launcher_was_forked(tmp_path: Path, threads: str, code: int) -> None:
    script, seen = write_script(tmp_path, SCRIPT), []
    for is_cold in (True, False):
        ended = start(
            tmp_path, "-n", "1", "--threads", threads, script, "told.json", str(code), is_cold=is_cold
        ).finish()
        assert ended.code == code, ended.err
        told = json.loads((tmp_path / "told.json").read_text())
        for variables in (told["variables"], told["nursery"][1], told["launcher"][1]):
            variables.update((name, "") for name in variables if name.startswith(OF_ONE_RUN))
        del told["nursery"][0][4:]  # a descriptor, the modules, and the launcher's number
        said = [line for line in ended.out.splitlines() if line in ENDS]
        seen.append(told | {"end": said, "kept": (tmp_path / "kept.txt").read_text()})
    cold, warm = seen
    assert sorted(cold["end"]) == sorted(ENDS), cold["end"]
    assert cold["kept"] == "buffered"
    for name, value in cold.items():
        assert warm[name] == value, name


@pytest.mark.thorough
def test_where_the_time_limit_of_a_test_has_ended_the_server_the_next_test_gets_another_one(tmp_path: Path) -> None:
    server = launching.server()
    kill(server.pid)
    until(lambda: server.has_ended, "the end of the server")
    assert run_script(tmp_path, "print('here')", "-n", "1").code == 0
