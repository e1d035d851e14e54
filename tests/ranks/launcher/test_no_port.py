"""On one node the ranks meet in a memory that they inherit: nobody listens, and nothing is left behind."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path

import pytest

from samebits.rank.transport.local import native
from tests.support.launching import Running, kill, open_ports, run_script, start, until, write_script
from tests.support.promises import promise

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(not native.available(), reason=native.why_not())]
has_backend = pytest.mark.skipif(
    importlib.util.find_spec("samebits.torch_backend") is None, reason="there is no backend samebits"
)

INIT = """
    import samebits, torch
    run = samebits.init(lanes=2)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 4), torch.ones(8, 1))
    model, optimizer, loader = run.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(data, batch_size=4)
    )
    while True:
        for step in run.steps(loader):
            for x, y in step:
                run.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        run.print("trained", flush=True)
"""
BACKEND = """
    import torch, torch.distributed as dist
    dist.init_process_group("samebits")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    while True:
        model(torch.ones(2, 4)).sum().backward()
        if dist.get_rank() == 0:
            print("trained", flush=True)
"""
STORE = """
    import os
    import torch, torch.distributed as dist
    from samebits.rank.transport.shared_memory import SharedMemoryTransport
    from samebits.rank.transport.local.shared_store import inherited_store
    rank = int(os.environ["RANK"])
    ranks = SharedMemoryTransport(dist.PrefixStore("group", inherited_store()), rank, 2)
    while True:
        assert [each.item() for each in ranks.all_gather(torch.tensor([rank]))] == [0, 1]
        if rank == 0:
            print("trained", flush=True)
"""


def trains(place: Path, text: str, *options: str) -> Running:
    (place / "temporary").mkdir()
    run = start(place, "-n", "2", *options, write_script(place, text), env={"TMPDIR": str(place / "temporary")})
    run.wait_for("trained")
    return run


@promise(
    "never-stuck-nothing-left-behind",
    "On one node no process of a run listens on any port; what Gloo or a script opens is on loopback",
    also=[
        "test_nobody_listens_at_master_port_before_a_script_wants_it",
        "test_nobody_outside_this_machine_can_connect_to_a_run",
    ],
)
@pytest.mark.parametrize(
    ("text", "options"),
    [
        (STORE, ()),
        pytest.param(STORE, ("--start-method=spawn",), marks=pytest.mark.thorough),
        pytest.param(BACKEND, (), marks=has_backend),
        pytest.param(INIT, ("--backend", "samebits"), marks=has_backend),
    ],
    ids=["store", "fresh", "backend", "init"],
)
def test_no_process_of_a_run_listens(tmp_path: Path, text: str, options: tuple[str, ...]) -> None:
    run = trains(tmp_path, text, *options)
    try:
        processes = run.processes()
        assert len(processes) == 4, "launcher, nursery and two ranks"
        assert open_ports(processes) == set()
    finally:
        run.process.terminate()
        assert run.finish().code == 143


@pytest.mark.parametrize("victim", ["launcher", "rank"])
def test_a_kill_leaves_no_process_and_no_file(tmp_path: Path, victim: str) -> None:
    run = trains(tmp_path, STORE)
    mapped = "".join(Path(f"/proc/{process}/maps").read_text() for process in run.processes())
    assert "/memfd:samebits" in mapped
    assert "/dev/shm" not in mapped, "nothing with a name, so nothing that could stay"
    if victim == "launcher":
        kill(run.process.pid)
    else:
        kill(max(run.processes()))  # the youngest
    ended = run.finish()
    assert ended.code == (-signal.SIGKILL if victim == "launcher" else 128 + signal.SIGKILL)
    until(lambda: run.processes() == [], "every process to end")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.thorough
def test_nobody_listens_at_master_port_before_a_script_wants_it(tmp_path: Path) -> None:
    script = """
        import os, socket, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            socket.create_connection(address)
        except ConnectionRefusedError:
            pass
        else:
            raise AssertionError("somebody listens")
        dist.barrier()
        store = dist.TCPStore(*address, 2, dist.get_rank() == 0)
        store.set(f"from {dist.get_rank()}", "here")
        assert store.get(f"from {1 - dist.get_rank()}") == b"here"
        print("met")
    """
    ended = run_script(tmp_path, script, "-v", "-n", "2")
    assert (ended.code, ended.out) == (0, "met\n"), ended.err
    assert "plain torch.distributed, met through torchrun's environment" in ended.err


PROCESSES = """
    import os, subprocess, sys
    import torch, torch.distributed as dist
    if len(sys.argv) == 1:  # the rank: its own process, then one in its place
        subprocess.run([sys.executable, __file__, "started"], check=True)
        os.execv(sys.executable, [sys.executable, __file__, "in its place"])
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        os.write(1, f"{sys.argv[1]}: {int(total)}\\n".encode())
    dist.barrier()
    dist.destroy_process_group()  # plain torch may abort at the end without it
"""


@pytest.mark.thorough
def test_processes_that_ranks_start_meet_at_master_port(tmp_path: Path) -> None:
    ended = run_script(tmp_path, PROCESSES, "-n", "2")
    assert (ended.code, ended.out) == (0, "started: 2\nin its place: 2\n"), ended.err


WITHOUT = """
    import sys
    sys.modules["samebits._native"] = None  # as where there is no compiler
    import os, torch, torch.distributed as dist, samebits
    for _ in range(2):
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == 2
        dist.destroy_process_group()
    run = samebits.init(lanes=2)
    assert run.sum(1) == 2
    print("met")
"""


def test_without_the_compiled_part_ranks_meet_through_a_port_and_a_file(tmp_path: Path) -> None:
    ended = run_script(tmp_path, WITHOUT, "-n", "2")
    assert (ended.code, ended.out) == (0, "met\n"), ended.err


@promise(
    "torchrun-scripts-and-samebits-spawn",
    "`--backend` replaces the script's backend, in new groups and device meshes too",
)
@pytest.mark.parametrize("backend", ["gloo", pytest.param("samebits", marks=has_backend)])
def test_the_back_end_of_the_command_line_takes_the_place_of_the_scripts(tmp_path: Path, backend: str) -> None:
    script = """
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        dist.init_process_group("nccl", timeout=None)
        group = dist.new_group([0, 1], backend="nccl")
        dist.barrier(group)
        mesh = init_device_mesh("cpu", (2,))
        print(dist.get_backend(), dist.get_backend(group), dist.get_backend(dist.new_group()), mesh.size())
    """
    ended = run_script(tmp_path, script, "-n", "2", "--backend", backend)
    assert (ended.code, ended.out) == (0, f"{backend} {backend} {backend} 2\n"), ended.err


@pytest.mark.thorough
def test_our_back_end_needs_no_import_in_the_script(tmp_path: Path) -> None:
    script = """
        import sys, types
        import torch.distributed as dist
        sys.modules["samebits.torch_backend"] = None  # whoever imports it is told so
        try:
            dist.init_process_group("samebits")
        except ModuleNotFoundError as error:
            print(error.name)
    """
    ended = run_script(tmp_path, script, "-n", "1")
    assert (ended.code, ended.out) == (0, "samebits.torch_backend\n"), ended.err


def test_a_back_end_that_does_not_exist_ends_with_one_sentence(tmp_path: Path) -> None:
    ended = run_script(tmp_path, "", "--backend", "glue")
    assert (ended.code, ended.out, ended.folder) == (2, "", None)
    assert ended.err == "error: There is no backend 'glue'.\nhelp: Use one of samebits, gloo, nccl, mpi.\n"
