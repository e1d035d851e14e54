"""A plain torch.multiprocessing script (own processes, shared parameters, a queue) runs as it does under python."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.launching import kill, start, stretched, until, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
    import sys
    import torch
    import torch.multiprocessing as mp
    import torch.nn.functional as F
    from torch import nn

    STEPS = 100

    def train(rank, model, queue, received, endless):
        torch.manual_seed(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(64, 4)
        targets = inputs.sum(1, keepdim=True)
        step = 0
        while endless or step < STEPS:
            optimizer.zero_grad()
            F.mse_loss(model(inputs), targets).backward()
            optimizer.step()  # this updates the shared parameters
            step += 1
            if step == STEPS:
                queue.put((rank, model.weight.detach().clone()))
        received.wait()  # a tensor in a queue lives as long as its sender

    if __name__ == "__main__":
        endless = "endless" in sys.argv
        context = mp.get_context(sys.argv[1])
        model = nn.Linear(4, 1)
        model.share_memory()
        queue, received = context.Queue(), context.Event()
        processes = [context.Process(target=train, args=(n, model, queue, received, endless)) for n in range(2)]
        for process in processes:
            process.start()
        got = dict(queue.get(timeout=60) for _ in processes)
        print(sorted(got), all(weight.shape == (1, 4) for weight in got.values()))
        print("learned", bool((model.weight.detach() - 1).abs().max() < 0.01), flush=True)
        received.set()
        for process in processes:
            process.join()
        print("exit codes", [process.exitcode for process in processes])
"""
OUTPUT = "[0, 1] True\nlearned True\nexit codes [0, 0]\n"


@promise(
    "never-stuck-nothing-left-behind",
    "A plain torch.multiprocessing script runs under `samebits run -n 1` as under python",
)
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.thorough)])
def test_it_runs_under_the_launcher(tmp_path: Path, method: str) -> None:
    script = write_script(tmp_path, SCRIPT)
    finished = start(tmp_path, "-q", "-n", "1", "--threads", "1", script, method).finish()
    assert (finished.code, finished.out) == (0, OUTPUT), finished.err


MEETING = """
    import os, socket, sys
    import torch, torch.distributed as dist, torch.multiprocessing as mp

    def init_process(rank, size, port):  # as in torch's tutorial "Writing distributed applications"
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
        dist.init_process_group("gloo", rank=rank, world_size=size)
        total = torch.ones(1)
        dist.all_reduce(total)
        os.write(1, b"total %d\\n" % total)
        dist.destroy_process_group()

    if __name__ == "__main__":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for method in ("fork", "spawn"):
            context = mp.get_context(method)
            processes = [context.Process(target=init_process, args=(rank, 2, port)) for rank in range(2)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
        dist.init_process_group("gloo")
"""


@pytest.mark.thorough
def test_processes_of_a_script_meet_each_other_as_they_do_under_python(tmp_path: Path) -> None:
    finished = start(tmp_path, "-q", "-n", "1", write_script(tmp_path, MEETING)).finish()
    assert (finished.code, finished.out) == (0, "total 2\n" * 4), finished.err


@pytest.mark.parametrize(
    ("method", "number"), [("fork", signal.SIGKILL), pytest.param("spawn", signal.SIGTERM, marks=pytest.mark.thorough)]
)
def test_a_launcher_that_ends_leaves_no_process_no_shared_memory_and_no_socket(
    tmp_path: Path, method: str, number: signal.Signals
) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    script = write_script(tmp_path, SCRIPT)
    run = start(tmp_path, "-n", "1", "--threads", "1", script, method, "endless", env={"TMPDIR": str(temporary)})
    try:
        run.wait_for("learned True")
        assert len(run.processes()) >= 5  # launcher, nursery, store or rank, and two of the script's own
        assert list(temporary.glob("sbmp-*/listener-*"))
        if number == signal.SIGKILL:
            kill(run.process.pid)
        else:
            os.kill(run.process.pid, number)
        run.process.wait(10)
        until(lambda: not run.processes(), "the end of all processes", stretched(1.0))
        until(lambda: not list(temporary.glob("sbmp-*")), "the end of their sockets", stretched(1.0))
        assert [path for pid in run.seen for path in Path("/dev/shm").glob(f"*_{pid}_*")] == []
    finally:
        run.clean_up()
