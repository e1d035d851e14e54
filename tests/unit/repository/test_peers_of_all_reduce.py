"""The comparison with other libraries: what is measured, who takes part, and that nobody who fails stops the others."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # the benchmarks are beside the tests, and in no package that is installed

from benchmarks.__main__ import objection_to_peers  # noqa: E402
from benchmarks.cases import BY_TORCH, MIB, ORDINARY  # noqa: E402
from benchmarks.peers import meeting  # noqa: E402
from benchmarks.peers.cases import SIZES, SLICE_NS, Amount, PeerCase, amount, cases, num_buffers  # noqa: E402
from benchmarks.peers.contestants import OURS, Contestant, Field, contestants  # noqa: E402
from benchmarks.peers.meeting import PeerFailed, Ranks  # noqa: E402
from benchmarks.peers.table import Row, as_json, table_of_peers  # noqa: E402

CACHE = 32 * MIB
ONE = Amount(1, 1)

PEER = """
import os, signal, socket, sys, time
rank, how, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if rank == 0:
    if os.fork() == 0: rank = 1
connection = socket.socket(socket.AF_UNIX)
connection.connect(path)
talk = connection.makefile("rw")
print(rank, os.getpid(), "A name", file=talk, flush=True)
for line in talk:
    if line == "end\\n": break
    if rank == 1 and how == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if rank == 1 and how == "end": sys.exit("it is over")
    times = "4.0 8.0 6.0" if rank == 0 else "5.0 5.0 5.0"
    print("wrong" if rank == 1 and how == "wrong" else f"ok {times}", file=talk, flush=True)
if rank == 0: os.wait()
"""
"""A launcher with two ranks, itself and a child."""


def started(how: str, folder: Path, listening: socket.socket, **settings: bool) -> Ranks:
    listening.bind(str(folder / "turns"))
    listening.listen()
    command = sys.executable, "-c", PEER, "0", how, str(folder / "turns")
    ranks = Ranks(Contestant("peer", ("sum",), command, **settings), folder / "log")
    ranks.gather(listening, 2)
    return ranks


def pids_of(ranks: Ranks) -> list[int]:
    return [caller.pid for caller in ranks._callers.values()]


def is_gone(pid: int) -> bool:
    with suppress(OSError):
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return True


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_slice_is_the_median_over_blocks_of_the_slowest_rank(tmp_path: Path, is_stopped: bool) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        ranks = started("well", tmp_path, listening, is_stopped=is_stopped)
        assert ranks.slice("sum", PeerCase(4), 1, ONE) == 6.0
        assert ranks.slice("sum", PeerCase(4), 1, ONE) == 6.0
        pids = pids_of(ranks)
        ranks.end()
    assert all(map(is_gone, pids))


@pytest.mark.parametrize(
    ("how", "said"), [("hang", "took longer than 0 s for 4 B"), ("end", "ended at 4 B: it is over"), ("wrong", "wrong")]
)
def test_a_peer_that_hangs_or_ends_or_adds_wrongly_is_told_and_leaves_no_process(
    how: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "SLICE_S", 0.3)
    with socket.socket(socket.AF_UNIX) as listening:
        ranks = started(how, tmp_path, listening)
        with pytest.raises(PeerFailed, match=said):
            ranks.slice("sum", PeerCase(4), 1, ONE)
        pids = pids_of(ranks)
        ranks.end(hard=True)
    assert all(map(is_gone, pids))


def test_a_peer_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "turns"))
        listening.listen()
        command = sys.executable, "-c", "import sys; sys.exit('there are not enough slots')"
        ranks = Ranks(Contestant("peer", ("sum",), command), tmp_path / "log")
        with pytest.raises(PeerFailed, match="did not start: there are not enough slots"):
            ranks.gather(listening, 2)
        ranks.end(hard=True)


def test_every_size_is_measured_and_what_no_cache_holds_only_once() -> None:
    planned = cases(SIZES, 2, CACHE)
    assert {case.num_bytes for case in planned} == set(SIZES)
    assert [case.what for case in planned][:6] == ["4 B", "256 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB hot"]
    assert [case.what for case in planned][-3:] == ["16 MiB rotated", "64 MiB rotated", "128 MiB rotated"]


@given(st.sampled_from(SIZES), st.integers(2, 8))
def test_rotated_buffers_of_all_ranks_leave_the_last_cache(size, num_ranks) -> None:
    assert num_buffers(PeerCase(size), num_ranks, CACHE) == 1
    assert num_buffers(PeerCase(size, is_rotated=True), num_ranks, CACHE) * num_ranks * size >= 2 * CACHE


@given(st.floats(1.0, 1e10))
def test_a_slice_is_short_unless_few_operations_are_long(one_ns) -> None:
    found = amount(one_ns)
    assert found.often >= 1
    assert found.num_blocks >= (3 if one_ns < 100e6 else 1)
    assert found.often * found.num_blocks * one_ns <= max(2 * SLICE_NS, 4 * one_ns)


def test_who_is_not_installed_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = contestants(Field(tmp_path, tmp_path, tmp_path / "turns", 2, 2))
    assert [one.name for one in found if not one.missing] == ["lockstep"]
    assert all("make peers" in one.missing for one in found[1:])


def test_where_ranks_share_cores_peers_are_told_to_give_them_away(tmp_path: Path) -> None:
    for name in ("openmpi/bin/mpirun", "mpich/bin/mpiexec.hydra", "impi/bin/mpiexec.hydra"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    crowded, alone = (contestants(Field(tmp_path, tmp_path, tmp_path / "turns", 4, cores)) for cores in (2, 4))
    changed = [one.name for one, other in zip(crowded, alone, strict=True) if one.environment != other.environment]
    assert changed == ["Open MPI", "MPICH", "Intel MPI"]


def row() -> Row:
    times = dict(zip(OURS, ([1.0, 1.0], [2.0, 2.0], [8.0, 8.0]), strict=True))
    return Row(2, "4 B", {**times, "MPICH": [4.0, 6.0], "Open MPI": [9.0, 9.0]})


def test_we_are_ahead_of_the_best_peer_or_behind_it() -> None:
    found = row()
    assert found.best_peer() == "MPICH"
    assert (found.ratio(ORDINARY), found.ratio(BY_TORCH)) == (2.5, 0.625)
    assert table_of_peers([found]).splitlines()[1].endswith("behind")
    found.rounds[BY_TORCH] = [4.0, 5.0]
    assert table_of_peers([found]).splitlines()[1].endswith("ahead")


def test_without_any_peer_there_is_no_ratio() -> None:
    alone = Row(2, "4 B", {BY_TORCH: [8.0]})
    assert alone.ratio(BY_TORCH) is None
    assert "x" not in table_of_peers([alone]).splitlines()[1]
    assert json.loads(json.dumps(as_json([alone])))[0]["rounds"] == {BY_TORCH: [8.0]}


@pytest.mark.parametrize(
    ("parts", "ranks", "picture", "wanted", "said"),
    [
        (["transport"], "2,4", None, True, ""),
        (["ddp"], "2,4,8", None, False, ""),
        ([], "2,4,8", None, True, "--peers compares the transport alone."),
        (["transport"], "2,x", None, True, "--ranks 2,x must be numbers from 2 to 64"),
        (["transport"], "1", None, True, "--ranks 1 must be numbers from 2 to 64"),
        (["transport"], "2", None, False, "--ranks is for --peers."),
        (["transport"], "2", Path("x.png"), True, "--peers draws no picture."),
    ],
)
def test_what_makes_no_sense_with_peers_is_said_in_one_sentence(parts, ranks, picture, wanted, said) -> None:
    problem = objection_to_peers(parts, ranks, picture, wanted=wanted)
    assert said in problem
    assert bool(said) == bool(problem)


@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.parametrize("ending", [None, signal.SIGTERM, signal.SIGINT])
def test_whoever_is_installed_is_measured_and_nothing_is_left(ending: signal.Signals | None) -> None:
    before = set(Path("/dev/shm").iterdir())
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "transport", "--peers", "--quick", "--json", "--ranks", "2"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if ending is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(6)
        process.send_signal(ending)
    said, problems = process.communicate(timeout=200)
    if ending is not None:
        assert (process.returncode, "Traceback" in problems) == (128 + ending, False)
    else:
        assert process.returncode == 0, problems
        measured = json.loads(said)["peers"]
        assert {BY_TORCH, "Gloo"} <= set(measured[0]["rounds"])
        assert all(len(times) == 3 for row in measured for times in row["rounds"].values())
    assert not {
        path.name for path in set(Path("/dev/shm").iterdir()) - before if "mpi" in path.name or "deepspeed" in path.name
    }
