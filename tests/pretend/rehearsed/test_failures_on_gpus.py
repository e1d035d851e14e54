"""A rank whose GPU fails, or that ends in its step: it is named with its own error, and those that wait inside NCCL are ended."""

import re

import pytest

from tests.support.launching import run_script, start_python, write_script

pytestmark = pytest.mark.ranks
"""As between GPUs: the others hear nothing of a rank that has ended, and wait."""

SCRIPT = """
    import os, signal, sys
    import torch, torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(lanes=4, threads=1, strategy=os.environ.get("STRATEGY"))
    is_last = run.rank == run.world_size - 1
    model = torch.nn.Sequential(torch.nn.Linear(16, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10), torch.nn.Tanh())
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(96, 16), torch.randint(0, 10, (96,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16))


    def fails(x):
        fault = os.environ["FAULT"]
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "killed once" and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "raises":
            raise ValueError("my own")
        if fault == "memory":
            torch.empty(90 << 30, dtype=torch.uint8, device=x.device)
        if fault == "no form":
            F.cross_entropy(torch.ones(1, 3, 2, 2, device=x.device), torch.zeros(1, 2, 2, dtype=torch.long, device=x.device))
        if fault in ("device-side assert triggered", "unspecified launch failure"):
            torch.ops.pretend.plant_fault("neg", fault)
            -x  # the line
        return x


    for step in run.steps(loader):

        def loss_of(batch):
            x, y = batch
            return F.cross_entropy(model(fails(x) if is_last and step.number == 3 else x), y)

        step.backward(loss_of)
        optimizer.step()
        optimizer.zero_grad()
    print("end", run.world_size)
"""
KERNEL = "CUDA error: device-side assert triggered"


def failed(tmp_path, fault, *options, **env):
    return run_script(tmp_path, SCRIPT, "-n", "3", *options, env={"FAULT": fault, **env})


def headline(ended):
    """The first line of the failure block."""
    return re.findall(r"^FAILED .*", ended.err, re.MULTILINE)[0]


def test_a_failed_kernel_is_told_as_one_with_what_finds_its_line(tmp_path):
    ended = failed(tmp_path, "device-side assert triggered")
    assert ended.code == 1
    assert headline(ended).startswith("FAILED    rank 2, in step 3 (2 done), forward and backward, lane")
    assert headline(ended).endswith(f": torch.AcceleratorError: {KERNEL}")
    assert "were stopped because of this" in ended.err
    assert (
        "help    A kernel failed on cuda:2 at this line or before: CUDA_LAUNCH_BLOCKING=1 stops at the line itself."
        in ended.err
    )
    assert "another rank left" not in ended.err


def test_memory_that_is_used_up_is_told_with_what_lies_there(tmp_path):
    ended = failed(tmp_path, "memory")
    assert ended.code == 1
    assert headline(ended).endswith(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 92160 MiB. GPU 2 has a total capacity of 81920 MiB of "
        f"which {re.search(r'which (.*) MiB is free', headline(ended))[1]} MiB is free."
    )
    holds = re.search(r"help    cuda:2 holds (.*?)\. A smaller batch or more lanes", ended.err)
    assert holds is not None, ended.err
    assert set(re.findall(r"MiB of ([a-z ]+)", holds[1])) >= {"parameters", "gradients", "optimizer state"}
    assert "were stopped because of this" in ended.err


@pytest.mark.thorough
def test_a_plain_script_has_the_same_help_behind_its_traceback(tmp_path):
    script = write_script(tmp_path, SCRIPT)
    ended = start_python(tmp_path, script, env={"FAULT": "no form"}).finish()
    assert ended.code == 1
    assert ended.err.splitlines()[-1].startswith("help: To keep exact numerics, give F.cross_entropy rows:")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "fault", "words", "code"),
    [
        ("pipeline", "raises", "ValueError: my own", 1),
        ("ddp", "killed", "killed by signal 9 (SIGKILL)", 137),
        ("model_parallel", "killed", "killed by signal 9 (SIGKILL)", 137),
        ("zero1", "device-side assert triggered", f"torch.AcceleratorError: {KERNEL}", 1),
        ("model_parallel", "unspecified launch failure", "torch.AcceleratorError: CUDA error: unspecified launch", 1),
        ("pipeline", "memory", "MiB is free.", 1),
    ],
)
def test_under_every_strategy_the_rank_that_failed_is_named(strategy, fault, words, code, tmp_path):
    ended = failed(tmp_path, fault, "--recover", "off", STRATEGY=strategy)
    assert ended.code == code
    assert headline(ended).startswith("FAILED    rank 2, step 3")
    assert words in headline(ended)
    assert "were stopped because of this" in ended.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "env", "words"),
    [
        (
            "device-side assert triggered",
            {"CUDA_LAUNCH_BLOCKING": "1"},
            "help    A kernel of this line failed on cuda:2.",
        ),
        ("unspecified launch failure", {}, "or `dmesg` has a line with Xid, it has failed"),
    ],
)
def test_a_failed_gpu_is_named_with_what_to_look_at(fault, env, words, tmp_path):
    assert words in failed(tmp_path, fault, **env).err


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_after_a_killed_rank_all_start_again_with_the_same_bits(strategy, tmp_path):
    bits = []
    for fault in ("killed once", "none"):
        (tmp_path / fault).mkdir()
        ended = failed(tmp_path / fault, fault, STRATEGY=strategy)
        assert ended.code == 0, ended.err
        assert "end 3" in ended.out
        assert ("all ranks start again (restart 1 of 3)" in ended.err) is (fault != "none")
        bits.append(ended.bits)
    assert bits[0] == bits[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("device-side assert triggered", r"\[rank2\]: help: A kernel failed on cuda:2"),
        ("memory", r"\[rank2\]: help: cuda:2 holds"),
        ("killed", r"exitcode  : -9"),
    ],
)
def test_under_torchrun_the_rank_that_failed_says_what_to_do_and_torchrun_ends_the_others(fault, words, tmp_path):
    script = write_script(tmp_path, SCRIPT)
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=3")
    ended = start_python(tmp_path, *launcher, script, env={"FAULT": fault}).finish()
    assert ended.code == 1
    assert re.search(words, ended.err)
    assert "end 3" not in ended.out
