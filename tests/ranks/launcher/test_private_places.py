"""What a run shows to other users of the machine while it goes on: nothing that listens, nothing that they could open."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from samebits.rank.transport.local import native
from tests.support.launching import Running, open_ports, start, until, write_script
from tests.support.promises import promise

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(not native.available(), reason=native.why_not())]

SCRIPT = """
    import os
    import samebits, torch
    os.umask({umask})
    run = samebits.init(lanes=2)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 4), torch.ones(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True)
    model, optimizer, loader = run.prepare(model, torch.optim.Adam(model.parameters()), loader)
    for epoch in run.epochs(10**6):
        for step in run.steps(loader):
            for x, y in step:
                run.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        run.log(epoch=epoch)
        if epoch == 4:
            run.print("trained", flush=True)
"""


def mode_of(path: Path) -> int:
    """Its rights; none for what is gone by now, because the run goes on."""
    try:
        return stat.S_IMODE(path.lstat().st_mode)
    except FileNotFoundError:
        return 0


def open_to_others(folder: Path) -> list[str]:
    """What other users could read, write or enter in this folder, if they may enter it."""
    modes = {path: mode_of(path) for path in (folder, *folder.rglob("*"))}
    return [f"{path.relative_to(folder)} {mode:o}" for path, mode in modes.items() if mode & 0o077]


def unix_names(processes: list[int]) -> set[str]:
    """The names of the Unix sockets of these processes; an abstract one, which anybody could connect to, begins with @."""
    lines = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    names = {f"socket:[{fields[6]}]": fields[7] for fields in lines if len(fields) > 7}
    links = (target_of(each) for process in processes for each in descriptors(process))
    return {names[link] for link in links if link in names}


def target_of(descriptor: Path) -> str:
    """What it leads to; nothing if it was closed by now, because the run goes on."""
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""


def descriptors(process: int) -> list[Path]:
    found = []
    for each in Path(f"/proc/{process}/fd").iterdir():
        try:
            each.readlink()
            found.append(each)
        except OSError:
            continue
    return found


def shared_memory_of(run: Running) -> list[Path]:
    """What has a name in shared memory and the number of one of its processes in it."""
    numbers = {str(process) for process in run.processes()}
    return [path for path in Path("/dev/shm").iterdir() if numbers & set(path.name.replace("-", "_").split("_"))]


def ours(temporary: Path) -> list[Path]:
    """The temporary files but torch's cache of what it compiles, which outlives every process."""
    return [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]


@promise(
    "shut",
    "While ranks train with loader workers and automatic states, no process listens on a port or an "
    "abstract Unix socket, and other users could open nothing of the run, under umask 000 too",
    also=["test_an_unnamed_run_leaves_private_files"],
)
@pytest.mark.parametrize("umask", [0o000, pytest.param(0o077, marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_other_users_find_nothing_of_a_run(tmp_path: Path, umask: int) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = write_script(tmp_path, SCRIPT.format(umask=umask))
    before = os.umask(umask)
    try:
        options = ("--name", "exp1", "--save-every", "1steps", "--log-dir", str(tmp_path / "runs"))
        run = start(tmp_path, "-n", "2", *options, script, env={"TMPDIR": str(temporary)}, is_cold=True)
    finally:
        os.umask(before)
    try:
        run.wait_for("trained")
        until(lambda: len(run.processes()) >= 7, "launcher, nursery, ranks, their workers and the process that saves")
        processes = run.processes()
        assert open_ports(processes) == set()
        names = unix_names(processes)
        folders = {
            Path(name).parent for name in names
        }  # of loader workers; in /tmp where their paths would be too long
        assert {str(folder.parent) for folder in folders} <= {str(temporary), "/tmp"}
        assert all(not mode_of(folder) & 0o077 for folder in folders)
        for folder in ours(temporary):
            assert not mode_of(folder) & 0o077, folder
        for path in shared_memory_of(run):
            assert not mode_of(path) & 0o077, path
        assert not mode_of(tmp_path / "runs") & 0o022
        [place] = (path for path in (tmp_path / "runs" / "exp1").iterdir() if (path / "plan.json").exists())
        assert mode_of(place.parent) == mode_of(place) == 0o700
        assert open_to_others(place) == []
        assert mode_of(place.parent / "states") == 0o700
        maps = "".join(Path(f"/proc/{process}/maps").read_text() for process in processes)
        named = {word for line in maps.splitlines() for word in line.split()[5:] if word.startswith("/dev/shm/")}
        assert not [name for name in named if "samebits" in name and "samebits-kept" not in name]
        assert "/memfd:samebits" in maps
    finally:
        run.process.terminate()
        assert run.finish().code == 143
    assert ours(temporary) == []
    assert open_to_others(place) == []
    assert json.loads((place / "outcome.json").read_text())["signal"] == 15
