"""Each finding is provoked: the run's folder has it, the terminal says it, and `samebits diagnose` what to do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.launcher.diagnosis.findings import FINDINGS
from samebits.protocol.case import Case, cases_in
from tests.support.launching import Finished, run_script, write_script
from tests.support.launching import said as said_in
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

TRAIN = """
import os, signal, sys, threading, time

import torch
from torch.utils.data import DataLoader, Dataset

import samebits

how = sys.argv[1]
if how == "bound":
    os.sched_setaffinity(0, {0})
    time.sleep(1.5)
if how == "late" and os.environ["RANK"] == "1":
    time.sleep(600)


class Data(Dataset):
    def __len__(self):
        return 480 if how in ("starved", "straggle", "bound") else 24

    def __getitem__(self, index):
        if how == "starved":
            time.sleep(0.002)
        if how == "stuck" and index == 5:
            threading.Event().wait()
        if how == "worker memory" and index == 5:
            held = [bytearray(b"1" * (1 << 20)) for _ in range(4000)]
        return torch.full((4,), float("nan") if how == "nan" and index == 13 else 1.0), torch.ones(1)


run = samebits.init(seed=1, lanes=4)
model = torch.nn.Linear(4, 1)
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(Data(), 8, num_workers=how == "worker memory"))
for epoch in run.epochs(1):
    for step in run.steps(loader):
        for x, y in step:
            if how == "straggle" and run.rank == 1:
                time.sleep(0.02)
            run.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        if run.rank == 1 and step.number == 2:
            if how == "sleep":
                time.sleep(600)
            if how == "leave":
                sys.exit(0)
            if how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if how == "work":
                end = time.monotonic() + 7
                while time.monotonic() < end:
                    torch.ones(100).sum()
                    torch.zeros(100).sum()
            if how == "segfault":
                import ctypes
                ctypes.string_at(0)
            if how == "memory":
                held = [bytearray(b"1" * (1 << 20)) for _ in range(4000)]
"""

PLAIN = """
import sys, torch, torch.distributed as dist

how = sys.argv[1]
dist.init_process_group("gloo" if how == "interface" else "samebits")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
if how == "leave" and rank == 1:
    sys.exit(0)
if how == "mismatch":
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
if how == "crossed":
    for group in (pair, None) if rank == 0 else (None, pair):
        dist.all_reduce(torch.ones(4), group=group)
dist.all_reduce(torch.ones(2))
"""


def cases_of(run: Finished) -> list[Case]:
    assert run.folder is not None, run.err
    return cases_in(run.folder / "findings.jsonl")


def check(run: Finished, name: str, said: str, ranks: tuple[int, ...]) -> Case:
    """That the run has this finding, and says so in its own words and in those of the catalogue."""
    found = [case for case in cases_of(run) if case.finding == name]
    assert found, (cases_of(run), run.err)
    assert re.search(said, found[0].said), found[0].said
    assert found[0].ranks == ranks
    assert re.search(rf"^(see also|  see  ) +samebits diagnose .*: .*{name}", run.err, re.MULTILINE), run.err
    return found[0]


STALLS = [
    ("missing-rank", TRAIN, "late", r"rank 1 has not reached .*; rank 1 is at script.py:1\d", (1,)),
    pytest.param(
        *("stalled-in-data", TRAIN, "stuck", r"rank 1 is at script.py:2\d in Data.__getitem__", (1,)),
        marks=pytest.mark.thorough,
    ),
    pytest.param("stalled-in-script", TRAIN, "sleep", r"rank 1 is at script.py:4\d ", (1,), marks=pytest.mark.thorough),
    ("stopped-process", TRAIN, "stop", r"rank 1 is stopped by a signal", (1,)),
    ("crossed-groups", PLAIN, "crossed", r"ranks wait for each other", (0, 1)),
]


@promise(
    "never-stuck-nothing-left-behind",
    "What goes wrong or slow is a finding by its cause, each provoked by a test: stalls, early leavers,"
    " crashes, lack of memory, full disks, stragglers, starved loaders, crowded cores, NaN losses",
    also=[
        "test_how_a_run_failed_is_a_finding",
        "test_a_rank_that_the_kernel_kills_for_memory_is_a_finding_that_names_limit_and_ranks",
        "test_one_rank_alone_that_stands_still_in_its_data_is_a_finding",
        "test_a_full_disk_is_a_finding",
        "test_what_makes_a_run_slow_or_wrong_is_a_finding",
        "test_every_finding_is_provoked_by_a_test",
        "test_the_line_where_a_rank_left_too_early_is_named",
    ],
)
@pytest.mark.parametrize(("name", "script", "how", "said", "ranks"), STALLS)
def test_ranks_that_stand_still_are_a_finding(tmp_path, name, script, how, said, ranks):
    run = run_script(tmp_path, script, "-n", "2", "--on-stall", "stop", "--stall-after", "1.5", args=(how,))
    assert run.code == 1, run.err
    check(run, name, said, ranks)
    assert "\nSTALLED " not in run.err, "the failure block says it"
    assert re.search(rf"^stalled .*{said}", said_in(run, "FAILED")[0]), run.err
    assert f"  help    {FINDINGS[name].aid_afterwards}" in run.err


@pytest.mark.thorough
def test_a_rank_that_works_while_others_wait_is_a_finding_and_the_run_goes_on(tmp_path):
    run = run_script(tmp_path, TRAIN, "-n", "2", args=("work",))
    assert run.code == 0, run.err
    check(run, "busy-rank", r"slow .*rank 1 is at script.py:\d+", (1,))


@pytest.mark.thorough
def test_one_rank_alone_that_stands_still_in_its_data_is_a_finding(tmp_path):
    run = run_script(tmp_path, TRAIN, "-n", "1", "--on-stall", "stop", "--stall-after", "1.5", args=("stuck",))
    assert run.code == 1, run.err
    said = (
        r"stalled \d+ s: rank 0 does not move, in the middle of a step; rank 0 is at script.py:2\d in Data.__getitem__"
    )
    check(run, "stalled-in-data", said, (0,))


ENDS = [
    (
        "early-leaver",
        PLAIN,
        "leave",
        {},
        r"rank 1 ended with exit code 0 \(sys.exit at script.py:9\), while rank",
        (1,),
    ),
    ("early-leaver", TRAIN, "leave", {}, r"rank 1 is at 'the end of the script' \(script.py:4\d\)", (1,)),
    ("mismatched-collective", PLAIN, "mismatch", {}, r"all_reduce\(sum\) .* at script.py:11", (0,)),
    ("wrong-interface", PLAIN, "interface", {"GLOO_SOCKET_IFNAME": "eth77"}, r"address for: eth77", (0,)),
    ("crash", TRAIN, "segfault", {}, r"killed by signal 11 \(SIGSEGV\)", (1,)),
]


@pytest.mark.parametrize(("name", "script", "how", "env", "said", "ranks"), ENDS)
def test_how_a_run_failed_is_a_finding(tmp_path, name, script, how, env, said, ranks):
    run = run_script(tmp_path, script, "-n", "2", "--recover", "off", args=(how,), env=env)
    assert run.code not in {0, 130}, run.err
    case = next(case for case in cases_of(run) if case.finding == name)
    assert re.search(said, case.said), case.said
    is_mistake = run.code == 2  # its own sentence ends with its fix; either rank may be the first to say it
    assert case.ranks == ranks or is_mistake or name == "wrong-interface"
    if not is_mistake:
        assert f"help    {FINDINGS[name].aid_afterwards}" in run.err
    if name == "crash":
        assert re.search(r'File ".*script.py", line \d+ in <module>', run.err), "the stack is in the block"


SLOW = [
    ("straggler", "straggle", ("-n", "2"), {}, r"rank 1 takes \d+ ms a step in compute", (1,)),
    pytest.param(
        *("starved-loader", "starved", ("-n", "2"), {}, r"data \d\d%: more loader workers", ()),
        marks=pytest.mark.thorough,
    ),
    ("shared-core", "bound", ("-n", "2"), {}, r"the 2 ranks may use core 0 only", (0, 1)),
    ("crowded-cores", "fine", ("-n", "1", "--threads", "400"), {}, r"1 rank x 400 threads on \d+ cores?", ()),
    ("nan-loss", "nan", ("-n", "2"), {}, r"the loss is nan in step 2: it comes from lane 2, on rank 1;", (1,)),
]


@pytest.mark.parametrize(("name", "how", "options", "env", "said", "ranks"), SLOW)
def test_what_makes_a_run_slow_or_wrong_is_a_finding(tmp_path, name, how, options, env, said, ranks):
    run = run_script(tmp_path, TRAIN, *options, args=(how,), env=env)
    assert run.code == 0, run.err
    case = check(run, name, said, ranks)
    assert case.said in run.err, "as the terminal said it"


def test_a_full_disk_is_a_finding(tmp_path):
    script = """
        import sys
        import samebits
        run = samebits.init()
        raise OSError(28, "No space left on device", "weights.pt")
    """
    run = run_script(tmp_path, script, "-n", "1")
    check(run, "full-disk", "No space left on device", (0,))
    assert f"help    {FINDINGS['full-disk'].first_aid}" in run.err


GROUP = Path("/sys/fs/cgroup/memory")
"""Where control groups of the first version limit memory."""


def run_with_little_memory(tmp_path, how, recover="off"):
    """The run of TRAIN in a control group of 2 GiB."""
    own = GROUP / f"samebits-test-{os.getpid()}"
    try:
        own.mkdir()
        (own / "memory.limit_in_bytes").write_text(str(2 << 30))
    except OSError:
        pytest.skip("no memory control group can be made here")
    command = [
        sys.executable,
        "-m",
        "samebits",
        "run",
        "-n",
        "2",
        "--recover",
        recover,
        write_script(tmp_path, TRAIN),
    ]
    joined = ["sh", "-c", f'echo $$ > {own}/cgroup.procs && exec "$@"', "sh", *command, how]
    try:
        done = subprocess.run(joined, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    finally:
        own.rmdir()
    folder = next((tmp_path / "samebits-runs").iterdir())
    return Finished(done.returncode, done.stdout, done.stderr, folder)


@pytest.mark.thorough
def test_a_rank_that_the_kernel_kills_for_memory_is_a_finding_that_names_limit_and_ranks(tmp_path):
    run = run_with_little_memory(tmp_path, "memory")
    assert run.code == 137, run.err
    case = check(run, "killed-for-memory", r"its control group may use 2.1 GB \(the host has [\d.]+ of", (1,))
    assert re.search(r"rank 1 held \d\.\d\d GB, rank 0 0\.\d\d GB", case.said), case.said
    assert f"why     {case.said.removeprefix('rank 1: ')}" in run.err


@pytest.mark.thorough
def test_where_all_start_again_a_line_says_so(tmp_path):
    run = run_with_little_memory(tmp_path, "memory", "auto")
    why = r"  why     the kernel killed it for lack of memory: .*rank 1 held \d"
    assert re.search(rf"^LOST +rank 1 was killed.*\n{why}", run.err, re.MULTILINE), run.err


@pytest.mark.thorough
def test_so_is_a_loader_worker(tmp_path):
    run = run_with_little_memory(tmp_path, "worker memory")
    assert run.code == 1, run.err
    check(run, "killed-for-memory", r"loader worker .* its control group may use 2.1 GB", (1,))


@promise("never-stuck-nothing-left-behind", "`samebits diagnose` says of a finding why, and what to do")
@pytest.mark.thorough
def test_diagnose_says_why_and_what_to_do(tmp_path):
    run = run_script(tmp_path, PLAIN, "-n", "2", args=("leave",))
    command = [sys.executable, "-m", "samebits", "diagnose", str(run.folder)]
    said = " ".join(subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.split())
    finding = FINDINGS["early-leaver"]
    assert f"early-leaver: {finding.title}" in said
    for text in (finding.why, *finding.what_to_do):
        assert " ".join(text.replace("`", "").split()) in said


PROVOKED = {getattr(each, "values", each)[0] for each in (*STALLS, *ENDS, *SLOW)} | {
    "busy-rank",
    "full-disk",
    "killed-for-memory",
}


def test_every_finding_is_provoked_by_a_test():
    elsewhere = {
        "shared-device": "tests/unit/rank/start/test_device_rules.py",
        "replicas-apart": "tests/unit/rank/checks/test_ddp_replicas.py",
    }
    assert PROVOKED | elsewhere.keys() == set(FINDINGS), elsewhere


APART = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main(how, steps):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    model.forward = lambda x, use=True: model["head"](model["body"](x).tanh() if use else x)
    model["body"].requires_grad_(how != "frozen")
    ddp = DistributedDataParallel(model, find_unused_parameters=how == "unused", broadcast_buffers=True)
    model["body"].requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        x = (torch.randn(8, 4) + rank).requires_grad_()
        out = ddp(x, how != "unused" or rank == 1)
        loss = out.square().mean()
        if how == "penalty":  # the head's bias has no part in it
            loss = torch.autograd.grad(out.sum(), x, create_graph=True)[0].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if how == "written" and rank == 1:
            model["head"].bias.data += 1e-6
    if how == "destroyed":
        dist.destroy_process_group()

main(sys.argv[1], int(sys.argv[2]))
print("rank ends")
sys.exit(3 if sys.argv[1] == "frozen" else 0)  # an end of the script's own, whatever the code
"""


@promise(
    "never-stuck-nothing-left-behind",
    "Replicas of a plain script's DDP that come apart are a finding",
)
@pytest.mark.parametrize(
    ("how", "steps", "options", "said"),
    [
        (
            "frozen",
            3,
            (),
            r"at its end, 'body.weight' \(and 1 more of 4 parameters\) is not the same on rank 1 as on rank 0",
        ),
        ("written", 501, (), "after 500 forwards in training, 'head.bias' is not the same on rank 1"),
        ("written", 3, ("--check-every", "off"), None),
        pytest.param(
            "penalty", 1, (), r"at its end, 'body.weight' .*is not the same on rank 1", marks=pytest.mark.thorough
        ),
        *(pytest.param(how, 3, (), None, marks=pytest.mark.thorough) for how in ("unused", "destroyed")),
    ],
)
def test_replicas_of_a_plain_script_that_come_apart_are_a_finding(tmp_path, how, steps, options, said):
    run = run_script(tmp_path, APART, "-n", "2", *options, args=(how, str(steps)))
    assert (run.code, "rank ends" in run.out) == (3 if how == "frozen" else 0, True), run.err
    assert "ddp_replicas.py" not in run.err  # torch's warning about broadcast_buffers names the script's line
    cases = [case for case in cases_of(run) if case.finding == "replicas-apart"]
    assert [case.ranks for case in cases] == [(1,)] * (said is not None), cases
    assert all(re.search(said, case.said) and case.said in run.err for case in cases)
