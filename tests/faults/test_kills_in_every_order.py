"""`kill -9` of any two processes of a run, in every order: no process, shared memory, socket or mount of it is left."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.support.launching import Running, kill, run_script, start, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

PLAIN = """
    import os
    import torch, torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset
    dist.init_process_group("gloo")
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2)  # the launcher makes a process of it
    for number, batch in enumerate(DataLoader(TensorDataset(torch.ones(10**6, 4)), batch_size=4, num_workers=1)):
        dist.all_reduce(batch[0].sum())
        if number == 5:
            print("under way", flush=True)
"""
TRAINS = """
    import samebits, torch
    run = samebits.init(lanes=2)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 4), torch.ones(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True)
    model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for epoch in run.epochs(10**6):
        for step in run.steps(loader):
            for x, y in step:
                run.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        if epoch == 2:
            run.print("under way", flush=True)
"""
OF_PLAIN = ("launcher", "nursery", "rank", "worker", "store")
OF_TRAINS = ("launcher", "nursery", "rank", "worker")
ORDERS = [
    pytest.param(script, options, order, id="-".join((name, *order)), marks=() if order in short else pytest.mark.thorough)
    for name, script, options, roles, short in (
        ("plain", PLAIN, ("--max-restarts", "0"), OF_PLAIN, [("worker",)]),
        ("trains", TRAINS, ("--recover", "off", "--name", "exp1", "--save-every", "1steps"), OF_TRAINS, []),
    )
    for length in (1, 2)
    for order in itertools.permutations(roles, length)
]  # fmt: skip


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def roles(run: Running) -> dict[str, int]:
    """The processes by what they are, as far as they are there yet."""
    processes = run.processes()
    found = {"launcher": run.process.pid, "rank": run.pid_of(1)}
    for process in processes:
        parent = parent_of(process)
        if b"rank.start.nursery" in Path(f"/proc/{process}/cmdline").read_bytes() and parent == run.process.pid:
            found["nursery"] = process
        elif parent == found["rank"]:
            found["worker"] = process
        elif parent == found.get("nursery") and process not in {run.pid_of(0), run.pid_of(1)}:
            found["store"] = process
    return found


def left_behind(run: Running, temporary: Path) -> list[str]:
    """What is in shared memory under the number of one of its processes, and among its temporary files."""
    memory = [
        path for path in Path("/dev/shm").iterdir() if set(path.name.replace("-", "_").split("_")) & run_numbers(run)
    ]
    files = [*temporary.glob("samebits*"), *temporary.glob("sbmp-*")]  # torch has caches and folders of its own
    return sorted(str(path) for path in (*memory, *files))


def run_numbers(run: Running) -> set[str]:
    return set(map(str, run.seen))


def are_there(run: Running, wanted: Iterable[str]) -> Callable[[], bool]:
    return lambda: set(wanted) <= roles(run).keys()


def ends_the_run(script: str, order: tuple[str, ...]) -> bool:
    return bool({"launcher", "nursery", "rank"} & set(order)) or (script is PLAIN and "worker" in order)


@promise(
    "shut",
    "`kill -9` of any two of launcher, nursery, rank, loader worker and store server, in every order, "
    "leaves nothing; what had no time to be removed, the next run removes if nobody holds its lock",
    also=["test_folders_are_removed_when_nobody_holds_their_lock_and_their_sockets_are_left_alone"],
)
@pytest.mark.parametrize(("script", "options", "order"), ORDERS)
def test_nothing_is_left(tmp_path: Path, script: str, options: tuple[str, ...], order: tuple[str, ...]) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary)}
    mounts = Path("/proc/self/mountinfo").read_text()
    run = start(tmp_path, "-n", "2", "-v", *options, write_script(tmp_path, script), env=variables)
    try:
        run.wait_for("under way")
        until(are_there(run, OF_PLAIN if script is PLAIN else OF_TRAINS), "all processes of the run")
        processes = roles(run)
        for role in order:
            if processes[role] in run.processes() or role == order[0]:
                kill(processes[role])
        if not ends_the_run(
            script, order
        ):  # a store that nobody asks any more, a worker whose samples are fetched again
            run.process.terminate()
        code = run.finish().code
        until(lambda: run.processes() == [], "the end of all processes")
    finally:
        run.clean_up()
        for process in run.processes():
            kill(process)
    assert code != 0
    if set(order) == {"launcher", "nursery"}:  # then nobody is there to clean up, and the next run does
        run_script(tmp_path, "", "-n", "1", "--start-method=spawn", env=variables)
    assert left_behind(run, temporary) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts
