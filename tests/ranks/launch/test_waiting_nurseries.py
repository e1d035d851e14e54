"""`lockstep warm`: a run that begins in a nursery that waits is like any other, and anything doubtful starts as always."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import (
    Running,
    marked_processes,
    start_python,
    until,
    write_script,
)
from tests.support.seen_by_a_script import ENDS, SCRIPT, seen

pytestmark = pytest.mark.ranks

WAITING = """
    import time, torch
    print("under way", flush=True)
    while True:
        time.sleep(0.01)
"""
ASK = "import sys, lockstep; from lockstep.launch.warm.client import run_warm; sys.argv[1:] = ['run', '--nothing']; print(run_warm())"
"""What `lockstep run` does first. The launcher refuses the option, so it has the exit code 2; None: no nursery took it."""


@dataclass
class Warm:
    """The user's folder of a test, and the commands in it."""

    place: Path
    more: Mapping[str, str]

    @property
    def variables(self) -> dict[str, str]:
        return {"XDG_RUNTIME_DIR": str(self.place), "LOCKSTEP_WARM": "", "CI": "", **self.more}

    def command(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "lockstep", "warm", *words, "--json"],
            env=without_threads({**os.environ, **self.variables}), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    @property
    def waiting(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.command("--status")["waiting"]
        return found

    @property
    def runs(self) -> int:
        return sum(one["runs"] for one in self.waiting)

    def start(self, place: Path, *options: str, env: Mapping[str, str] | None = None) -> Running:
        return start_python(place, "-m", "lockstep", "run", *options, env={**self.variables, **(env or {})})

    def ask(self, env: Mapping[str, str] | None = None) -> str:
        """What the first thing that `lockstep run` does comes to."""
        variables = without_threads({**os.environ, **self.variables, **(env or {})})
        done = subprocess.run([sys.executable, "-c", ASK], env=variables, capture_output=True, text=True, timeout=60)
        return done.stdout.strip()

    def end(self) -> None:
        self.command("--stop")


def without_threads(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith("OMP_")}


@contextlib.contextmanager
def waiting_in(place: Path, **more: str) -> Iterator[Warm]:
    warm = Warm(place, more)
    try:
        warm.command("--threads", "1", "--for", "5m")
        yield warm
    finally:
        warm.end()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with waiting_in(tmp_path_factory.mktemp("user")) as made:
        yield made


def test_a_script_cannot_tell_whether_a_nursery_waited_for_it(warm: Warm, tmp_path: Path) -> None:
    """Also with odd things that a shell hands on: a mask, an ignored signal, a descriptor."""
    script, both, before = write_script(tmp_path, SCRIPT), [], warm.runs
    (tmp_path / "nine.txt").touch()
    for variable in ("off", ""):
        line = f"umask 027; trap '' HUP; exec {sys.executable} -m lockstep run -n 1 --threads 1 {script} told.json 3 9<nine.txt"
        running = start_python(tmp_path, "-c", line, python="sh", env={**warm.variables, "LOCKSTEP_WARM": variable})
        ended = running.finish()
        assert ended.code == 3, ended.err
        both.append((seen(tmp_path, ended), warm.runs))
    (cold, after_cold), (told, after_warm) = both
    assert (after_cold, after_warm) == (before, before + 1)
    assert sorted(cold["end"]) == sorted(ENDS)
    for name, value in cold.items():
        assert told[name] == value, name


def test_two_runs_begin_in_it_at_once_with_their_own_variables_folders_and_input(warm: Warm, tmp_path: Path) -> None:
    before, runs = warm.runs, []
    text = """
        import os, sys, lockstep
        run = lockstep.init(seed=0, lanes=2)
        if run.rank == 0:
            print(os.environ["LR"], os.getcwd(), run.world_size, flush=True)
    """
    for number in ("1", "2"):
        place = tmp_path / number
        place.mkdir()
        runs.append(warm.start(place, "-n", "2", write_script(place, text), env={"LR": number}))
    for number, running in zip(("1", "2"), runs, strict=True):
        ended = running.finish()
        assert ended.code == 0, ended.err
        assert f"{number} {tmp_path / number} 2" in ended.out
        assert marked_processes(running.mark) == []
    assert warm.runs == before + 2


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough), signal.SIGKILL]
)
def test_a_signal_for_the_command_reaches_the_launcher_and_nothing_is_left(
    warm: Warm, tmp_path: Path, number: signal.Signals
) -> None:
    before = warm.runs
    running = warm.start(tmp_path, "-n", "2", write_script(tmp_path, WAITING))
    running.wait_for("under way")
    running.process.send_signal(number)
    code = running.process.wait(30)
    assert code == (-number if number == signal.SIGKILL else 128 + number), running.err
    assert ("stopped" in running.err) == (number != signal.SIGKILL)
    until(lambda: marked_processes(running.mark) == [], "the end of all processes of the run")
    assert warm.runs == before + 1


def test_a_launcher_that_is_killed_ends_its_command_as_itself(warm: Warm, tmp_path: Path) -> None:
    running = warm.start(tmp_path, "-n", "2", write_script(tmp_path, WAITING))
    running.wait_for("under way")
    nurseries = [
        int(path.split("/")[2])
        for path in map(str, Path("/proc").glob("[0-9]*/stat"))
        if _is_nursery(path, running.mark)
    ]
    os.kill(_parent(nurseries[0]), signal.SIGKILL)
    assert running.process.wait(30) == -signal.SIGKILL
    until(lambda: marked_processes(running.mark) == [], "the end of all processes of the run")


def _is_nursery(path: str, mark: str) -> bool:
    pid = int(path.split("/")[2])
    with contextlib.suppress(OSError):
        return (
            pid in marked_processes(mark)
            and b"nursery.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
            and _parent(_parent(pid)) not in marked_processes(mark)
        )
    return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_command_that_is_stopped_stops_its_launcher_and_goes_on_with_it(warm: Warm, tmp_path: Path) -> None:
    text = """
        import time, torch
        for number in range(10**6):
            print(number, flush=True)
            time.sleep(0.01)
    """
    running = warm.start(tmp_path, "-n", "1", "--threads", "1", write_script(tmp_path, text))
    running.wait_for("5\n")
    running.process.send_signal(signal.SIGTSTP)
    until(lambda: _is_quiet(running), "no more output")
    running.process.send_signal(signal.SIGCONT)
    seen_last = running.out
    until(lambda: len(running.out) > len(seen_last), "more output")
    running.process.terminate()
    assert running.process.wait(30) == 128 + signal.SIGTERM
    until(lambda: marked_processes(running.mark) == [], "the end of all processes of the run")


def _is_quiet(running: Running) -> bool:
    before = running.out
    time.sleep(0.2)
    return running.out == before


def test_another_number_of_threads_gets_a_nursery_of_its_own(warm: Warm, tmp_path: Path) -> None:
    before = warm.runs
    text = "import torch\nprint('threads', torch.get_num_threads())\n"
    ended = warm.start(tmp_path, "-n", "1", "--threads", "2", write_script(tmp_path, text)).finish()
    assert (ended.code, "threads 2" in ended.out) == (0, True), ended.err
    assert warm.runs == before + 1


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"TORCH_LOGS": "+dynamo"}, marks=pytest.mark.thorough),
        {"OMP_NUM_THREADS": "1"},
        pytest.param({"MALLOC_ARENA_MAX": "1"}, marks=pytest.mark.thorough),
        {"PYTHONPATH": "/"},
        pytest.param({"LC_ALL": "C"}, marks=pytest.mark.thorough),
    ],
)
def test_a_variable_that_imports_read_starts_as_always(warm: Warm, changed: dict[str, str]) -> None:
    before = warm.runs
    path = {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), "/"])} if "PYTHONPATH" in changed else {}
    variables = {**without_threads(os.environ), **warm.variables, **changed, **path}
    done = subprocess.run([sys.executable, "-c", ASK], env=variables, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "None", done.stderr
    assert warm.runs == before
    assert warm.ask({"ANY_OTHER": "1"}) == "2"


def test_other_limits_cores_or_priorities_start_as_always(warm: Warm) -> None:
    for words in (["nice", "-n", "3"], ["prlimit", "--core=0"], ["taskset", "-c", "0"]):
        if words[0] == "taskset" and len(os.sched_getaffinity(0)) == 1:
            continue
        variables = without_threads({**os.environ, **warm.variables})
        done = subprocess.run([*words, sys.executable, "-c", ASK], env=variables, capture_output=True, text=True)
        assert done.stdout.strip() == "None", (words, done.stderr)
    assert warm.ask() == "2"


@pytest.mark.thorough
def test_one_that_is_stopped_or_killed_is_passed_by_at_once_and_its_socket_goes(tmp_path: Path) -> None:
    with waiting_in(tmp_path) as warm:
        (one,) = warm.waiting
        os.kill(one["process"], signal.SIGSTOP)
        assert warm.ask() == "None"
        unknown = dict.fromkeys(one) | {"process": one["process"], "state": "does not answer"}
        assert (one["state"], warm.waiting) == ("waits", [unknown])
        os.kill(one["process"], signal.SIGCONT)
        until(lambda: warm.ask() == "2", "the nursery that goes on")
        os.kill(one["process"], signal.SIGKILL)
        until(lambda: not Path(f"/proc/{one['process']}").exists(), "its end")
        assert warm.ask() == "None"
        assert not Path(one["socket"]).exists()
        assert warm.command("--stop") == {"stopped": 0}


@pytest.mark.thorough
def test_a_changed_file_ends_it_and_the_run_starts_as_always(tmp_path: Path) -> None:
    folder, user = tmp_path / "path", tmp_path / "user"
    folder.mkdir()
    user.mkdir()
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(folder)]))
    with waiting_in(user, PYTHONPATH=path) as warm:
        (one,) = warm.waiting
        assert warm.ask() == "2"
        (folder / "numpy.py").write_text("raise SystemExit('another numpy')")
        assert warm.ask() == "None"
        until(lambda: not Path(f"/proc/{one['process']}").exists(), "its end")
        assert not Path(one["socket"]).exists()


def test_whatever_comes_through_the_socket_it_goes_on(warm: Warm) -> None:
    (one,) = warm.waiting
    silent = []
    for data in (
        b"",
        b"\0" * 70_000,
        b"[",
        b"[1]",
        b'["run"]',
        b'["run", {}]',
        b'["keep", {}, 1, 1e999]',
        b"[" * 100_000,
        None,
    ):
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.connect(one["socket"])
        if data is None:
            silent.append(end)
            continue
        with end:
            socket.send_fds(end, [data], [0, 1, 2])
    descriptors = Path(f"/proc/{one['process']}/fd")
    assert warm.ask() == "2", "it does not wait for those that say nothing"
    for end in silent:
        end.settimeout(10)
        assert end.recv(10) == b"", "they are dropped"
        end.close()
    until(lambda: len(list(descriptors.iterdir())) <= 6, "descriptors that came are closed")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_strangers_socket_is_not_used_and_a_stranger_is_not_served(warm: Warm, tmp_path: Path) -> None:
    (one,) = warm.waiting
    path, folder = Path(one["socket"]), Path(one["socket"]).parent
    stranger = folder / f"{path.name.partition('-')[0]}-1"
    serve = f"""
        import os, socket, time
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.chdir({str(folder)!r})  # what is above is closed to the stranger
        os.setuid(65534)
        end.bind({stranger.name!r}); end.listen()
        print("listens", flush=True)
        print(end.accept()[0].recv(100), flush=True)
        known = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while True:
            try:
                known.connect({path.name!r})
                break
            except PermissionError:
                time.sleep(0.01)
        try:
            known.send(b'["status"]')
            print(known.recv(100), flush=True)
        except OSError as error:
            print(error, flush=True)
    """
    script = write_script(tmp_path, serve, "serve.py")
    assert (path.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    path.chmod(0o777)
    folder.chmod(0o777)
    try:
        running = start_python(tmp_path, script, env={"PYTHONPATH": ""})
        running.wait_for("listens")
        folder.chmod(0o700)
        assert warm.ask() == "2", "the nursery behind the other socket"
        folder.chmod(0o777)
        until(lambda: running.process.poll() is not None, "the stranger's end")
    finally:
        path.chmod(0o600)
        folder.chmod(0o700)
        stranger.unlink(missing_ok=True)
    assert len(running.out.splitlines()) == 3, running.err
    heard, answered = running.out.splitlines()[1:3]
    assert heard == "b''", "nothing is said to a stranger"
    assert answered == "b''" or "peer" in answered or "Broken pipe" in answered, answered


def test_a_run_keeps_one_for_the_next_where_it_is_asked_to(tmp_path: Path) -> None:
    warm, text = Warm(tmp_path, {}), "import os, torch\nprint('first')\n"
    script = write_script(tmp_path, text)
    try:
        ended = warm.start(tmp_path, "-n", "2", script, env={"LOCKSTEP_WARM": "5m", "CI": "true"}).finish()
        assert (ended.code, warm.waiting) == (0, []), ended.err
        ended = warm.start(tmp_path, "-n", "2", script, env={"LOCKSTEP_WARM": "5m"}).finish()
        assert ended.code == 0, ended.err
        until(lambda: bool(warm.waiting), "a nursery that waits")
        ended = warm.start(tmp_path, "-n", "2", script, env={"LOCKSTEP_WARM": "5m"}).finish()
        assert (ended.code, warm.runs, len(warm.waiting)) == (0, 1, 1), ended.err
        ended = warm.start(tmp_path, "-n", "2", script, env={"LOCKSTEP_WARM": "soon"}).finish()
        assert (ended.code, warm.runs) == (2, 2)
        assert "LOCKSTEP_WARM must be a time, but is 'soon'." in ended.err
    finally:
        warm.end()
    assert warm.waiting == []


@pytest.mark.thorough
def test_a_module_of_the_script_hides_one_of_the_launcher_or_of_torch(warm: Warm, tmp_path: Path) -> None:
    """Beside the script: another nursery. In a folder that the script adds: the launcher's are not there."""
    before, later = warm.runs, tmp_path / "later"
    later.mkdir()
    for place, name in ((tmp_path, "sympy"), (later, "click")):
        (place / f"{name}.py").write_text("OURS = True")
    text = f"""
        import sys, torch
        sys.path.insert(0, {str(later)!r})
        import click
        print("click", hasattr(click, "OURS"))
        import sympy
        print("sympy", hasattr(sympy, "OURS"))
    """
    script, told = write_script(tmp_path, text), []
    for variable in ("off", ""):
        ended = warm.start(tmp_path, "-n", "1", "--threads", "1", script, env={"LOCKSTEP_WARM": variable}).finish()
        assert ended.code == 0, ended.err
        told.append([line for line in ended.out.splitlines() if line.startswith(("click", "sympy"))])
    (tmp_path / "sympy.py").unlink()
    ended = warm.start(tmp_path, "-n", "1", "--threads", "1", script).finish()
    assert "click True" in ended.out, ended.err
    assert told[0] == told[1]
    assert told[0][0] == "click True"
    assert warm.runs == before + 2


def test_one_that_is_started_ends_none_in_another_folder(warm: Warm, tmp_path: Path) -> None:
    """Here the cache is the other folder: what waits there serves too, but is no surplus of this one."""
    (process,) = (one["process"] for one in warm.waiting)
    other = Warm(tmp_path, {"XDG_CACHE_HOME": str(warm.place), "OTHER": "1"})
    start = "import os; from lockstep.launch.warm import starting; starting.MOST = 1; starting.start_waiting(os.environ, 3, 300)"
    variables = without_threads({**os.environ, **other.variables})
    subprocess.run([sys.executable, "-c", start], env=variables, check=True, timeout=60)
    waiting = {one["process"] for one in other.waiting}
    for one in waiting - {process}:
        os.kill(one, signal.SIGKILL)
    assert (process in waiting, len(waiting)) == (True, 2)


def test_without_a_folder_of_its_own_none_is_started_and_a_run_that_keeps_one_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "lockstep-warm").mkdir(mode=0o755)
    (tmp_path / "lockstep-warm").chmod(0o755)
    variables = {"XDG_RUNTIME_DIR": "", "XDG_CACHE_HOME": str(tmp_path), "LOCKSTEP_WARM": "1m", "CI": ""}
    if Path(f"/run/user/{os.geteuid()}").is_dir():
        pytest.skip("here there is a runtime folder")
    broken = tmp_path / "torch.py"
    broken.write_text("raise SystemExit('torch was imported')")
    ended = start_python(tmp_path, "-m", "lockstep", "warm", env={**variables, "PYTHONPATH": str(tmp_path)}).finish()
    broken.unlink()
    told = f"others can enter {tmp_path}/lockstep-warm, whose mode is 0755."
    assert (ended.code, told in ended.err, f"`chmod 700 {tmp_path}/lockstep-warm`" in ended.err) == (2, True, True)
    assert "torch was imported" not in ended.err
    script = write_script(tmp_path, "print('begun')")
    ended = start_python(tmp_path, "-m", "lockstep", "run", "-n", "1", script, env=variables).finish()
    assert (ended.code, ended.err.count(told)) == (0, 1), ended.err


@pytest.mark.thorough
def test_one_too_many_ends_the_one_that_nobody_used_for_longest_and_says_so(tmp_path: Path) -> None:
    with waiting_in(tmp_path) as warm:
        (first,) = warm.waiting
        code = "from lockstep.launch.warm import starting; import lockstep.cli.warm as warm; starting.MOST = warm.MOST = 1; from lockstep.cli.front import main; main()"
        ended = start_python(tmp_path, "-c", code, "warm", "--threads", "3", env=warm.variables).finish()
        assert ended.code == 0, ended.err
        said = f"ended     process {first['process']}: at most 1 wait, and nobody used it for longest"
        assert said in ended.out.splitlines()
        assert first["process"] not in [one["process"] for one in warm.waiting]


@pytest.mark.parametrize("words", [["--status", "--stop"], ["--stop", "--for", "1m"], ["--for", "long"]])
def test_options_that_cannot_be_are_refused_and_nothing_is_started(tmp_path: Path, words: list[str]) -> None:
    warm = Warm(tmp_path, {})
    ended = start_python(tmp_path, "-m", "lockstep", "warm", *words, env=warm.variables).finish()
    assert (ended.code, ended.err.count("\n")) == (2, 2), ended.err
    assert not (tmp_path / "lockstep-warm").exists()
