"""Many ranks on one node: what each has open grows with them at most, a death among them is named, limits are told."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.launching import kill, start, start_python, stretched, until, write_script

pytestmark = pytest.mark.ranks

COUNTS = """
    import json, os, sys
    import torch.distributed as dist
    from pathlib import Path

    dist.init_process_group("samebits")
    before = len(os.listdir("/proc/self/fd"))
    groups = [dist.new_group() for _ in range(5)]
    launcher = os.environ["SAMEBITS_NURSERY"].partition("-")[0]
    open_files = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (launcher, os.getppid())]
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, [before, len(os.listdir("/proc/self/fd"))])
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps([*map(max, zip(*told)), *open_files]))
    dist.barrier()
"""
GROUPS = 5


def counted(place: Path, ranks: int) -> list[int]:
    """Descriptors of a rank, of a rank with five more groups, of the launcher, and of the nursery."""
    place.mkdir()
    target = place / "counted.json"
    ended = start(place, "-q", "-n", str(ranks), "--threads", "1", write_script(place, COUNTS), str(target)).finish()
    assert ended.code == 0, ended.err
    found: list[int] = json.loads(target.read_text())
    return found


@pytest.mark.thorough
def test_descriptors_grow_by_one_for_each_other_rank_and_for_each_group(tmp_path: Path) -> None:
    two, four, eight = (counted(tmp_path / str(ranks), ranks) for ranks in (2, 4, 8))
    assert four[0] - two[0] == 2, "a rank has one for the process of each other rank"
    assert eight[0] - four[0] == 4
    assert [one[1] - one[0] for one in (two, four, eight)] == [GROUPS] * 3, "and one for each group, however large"
    assert four[2] - two[2] <= 2 * 4, "the launcher has four for each rank: two pipes, a journal, a log"
    assert eight[2] - four[2] <= 4 * 4
    assert two[3] == four[3] == eight[3], "the nursery has none"


ENDLESS = """
    import os, sys, time
    import torch, torch.distributed as dist
    from pathlib import Path

    dist.init_process_group("samebits")
    value = torch.ones(1)
    dist.all_reduce(value)
    Path(sys.argv[1], str(dist.get_rank())).touch()
    while True:
        dist.all_reduce(value)
        time.sleep(0.01)
"""


@pytest.mark.parametrize("ranks", [8, pytest.param(64, marks=pytest.mark.thorough)])
def test_a_death_among_many_ranks_is_named_and_nothing_is_left(tmp_path: Path, ranks: int) -> None:
    met = tmp_path / "met"
    met.mkdir()
    run = start(tmp_path, "-v", "-n", str(ranks), "--threads", "1", write_script(tmp_path, ENDLESS), str(met))
    try:
        until(lambda: len(list(met.iterdir())) == ranks, "the first all_reduce of all ranks", stretched(60.0))
        processes = run.processes()
        kill(run.pid_of(ranks - 1))
        began = time.monotonic()
        until(lambda: "FAILED" in run.err, "the name of the rank that died", stretched(20.0))
        print(f"a death among {ranks} ranks was named after {time.monotonic() - began:.2f} s")
        ended = run.finish()
    finally:
        run.clean_up()
    assert ended.code == 128 + signal.SIGKILL
    assert f"FAILED    rank {ranks - 1}: killed by signal 9 (SIGKILL)" in ended.err
    assert "were stopped because of this" in ended.err
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), "the end of all processes")


LIMITED = "import resource, sys; resource.setrlimit(resource.{}, ({}, {})); from samebits.cli.main import main; main()"


@pytest.mark.parametrize(
    ("limit", "most", "says", "fix"),
    [
        ("RLIMIT_NOFILE", 64, "64 ranks need 272 open files, but a process may have 64 here.", "`ulimit -n 1024`"),
        ("RLIMIT_AS", 400 << 20, "did not survive that with 400 MiB of addresses.", "`ulimit -v unlimited`"),
    ],
)
def test_a_limit_that_is_too_low_for_many_ranks_is_told_before_any_begins(
    tmp_path: Path, limit: str, most: int, says: str, fix: str
) -> None:
    script = write_script(tmp_path, "print('begun')")
    run = start_python(tmp_path, "-c", LIMITED.format(limit, most, most), "run", "-q", "-n", "64", script)
    ended = run.finish()
    assert ended.code == 2, ended.err
    assert says in ended.err
    assert fix in ended.err
    assert "begun" not in ended.out
    assert "Traceback" not in ended.err
    until(lambda: not run.processes(), "the end of all processes")


@pytest.mark.thorough
def test_a_torch_that_cannot_be_mapped_for_want_of_addresses_is_told_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    says = "libtorch_cuda.so: failed to map segment from shared object"
    (tmp_path / "torch" / "__init__.py").write_text(f"raise ImportError({says!r})")
    (tmp_path / "script.py").touch()
    limited = LIMITED.format("RLIMIT_AS", 4 << 30, 4 << 30)
    path = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    ended = start_python(tmp_path, "-c", limited, "run", "-n", "2", "script.py", env=path).finish()
    assert ended.code == 2, ended.err
    assert "did not survive that with 4096 MiB of addresses." in ended.err
    assert "`ulimit -v unlimited`" in ended.err
    assert "Traceback" not in ended.err
