"""The launcher's lines read well and line up."""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from samebits.errors import DIFFERENT_BITS, UsageError
from samebits.launcher.blame import RankEnd, Verdict
from samebits.launcher.choices import Verbosity
from samebits.launcher.diagnosis.findings import FULL_DISK
from samebits.launcher.diagnosis.spent import Summary
from samebits.launcher.folder import make_run_folder, remove_copies, reserve_run_folder
from samebits.launcher.request import Computation, EntryPoint, LaunchRequest, Output, Placement
from samebits.launcher.terminal.cases import Cases
from samebits.launcher.terminal.failure_block import Evidence, crash_stack, failure_block, lost_block, stall_block
from samebits.launcher.terminal.progress import Progress, Snapshot, duration, progress_line
from samebits.launcher.terminal.report import (
    Line,
    Seconds,
    StartTimes,
    done_here_line,
    end_lines,
    lanes_line,
    numerics_line,
    opening_line,
    opens_at_once,
    start_line,
)
from samebits.protocol.claims import Proved
from samebits.protocol.journal.failure import Failure, FailureKind
from samebits.protocol.journal.gauges import Gauges
from samebits.protocol.journal.ring import ENDING, Phase, Record
from samebits.protocol.run_folder import RunFolder, make_own

REQUEST = LaunchRequest(
    EntryPoint(Path("train.py")),
    Placement(2, 1, "cpu", why="2 cores by affinity"),
    Output(Path("samebits-runs/x")),
    Computation(lanes=4),
)
NOTHING = Evidence([], Path("logs/1.log"), "", "")


DECIDED = {"lanes": 4, "batch_size": 64, "strategy": "ddp", "lane_sizes": [16, 16, 16, 16]}


def detailed(request: LaunchRequest) -> LaunchRequest:
    return replace(request, output=replace(request.output, verbosity=Verbosity.DETAILED))


def test_one_line_says_what_starts_and_where_it_writes() -> None:
    assert opening_line(REQUEST, DECIDED) == Line("samebits", "2 ranks on cpu, 4 lanes of 16, ddp", "samebits-runs/x")
    assert opening_line(detailed(REQUEST), {}).text == "2 ranks on cpu, 1 thread each (2 cores by affinity)"
    assert opening_line(replace(REQUEST, placement=Placement(1, 8, "cuda")), {}).text == "1 rank on cuda:0"
    shared = replace(REQUEST, placement=Placement(4, 1, "cuda", shared_gpus=1, devices=("NVIDIA T4",)))
    assert opening_line(shared, {}).text == "4 ranks on cuda:0 (NVIDIA T4), shared through host memory"
    assert start_line(StartTimes(0.06, 0.9, 0.02), False).text == "in 0.98 s: command 0.06, import 0.90, fork 0.02"


def test_the_first_line_waits_for_lanes_unless_there_will_be_none_or_all_is_to_be_said() -> None:
    calls = replace(REQUEST, entry=replace(REQUEST.entry, calls_init=True))
    assert [opens_at_once(one) for one in (REQUEST, calls, detailed(calls))] == [True, False, True]


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([32], "1 lane of 32, ddp"),
        ([4] * 16, "16 lanes of 4, ddp"),
        ([3, 3, 3, 3, 3, 3, 3, 3, 2], "9 lanes of 2 to 3, ddp"),
        ([], "0 lanes, batches of batch_sampler, ddp"),
    ],
)
def test_many_lanes_stay_one_line(sizes: list[int], text: str) -> None:
    decided = {"lanes": len(sizes) or 4, "batch_size": sum(sizes) or None, "strategy": "ddp", "lane_sizes": sizes}
    assert lanes_line(decided).text == text.replace("0 lanes,", "4 lanes,")


def test_the_arithmetic_is_said_where_it_is_not_the_default() -> None:
    exact = {"arithmetic": {"numerics": "exact", "precision": "32", "seed": 0}}
    assert numerics_line(REQUEST, exact) is None
    assert numerics_line(detailed(REQUEST), exact) == Line("numerics", "exact: seed 0, deterministic algorithms")
    for other in ({"numerics": "fast"}, {"precision": "bf16-mixed"}, {"allow": ["histc"]}):
        assert numerics_line(REQUEST, {"arithmetic": {**exact["arithmetic"], **other}}) is not None


def test_four_lines_say_how_it_ended_and_what_gives_the_same_bits() -> None:
    result = {
        "steps": 60,
        "epochs": 10,
        "samples": "1437 samples, each once",
        "bits": f"sha256:{'3f9a' * 16}",
        "lanes": 4,
        "threads": 1,
    }
    told = Summary(0.034, {"data": 9, "compute": 91})
    assert end_lines(REQUEST, result, DECIDED, told, Seconds(40.0, 7.23, 4096, end=3.8)) == [
        Line(
            "done",
            "10 epochs, 60 steps in 7.2 s, 567 samples/s, every sample once per epoch",
            "(start 29 s, end 3.8 s)",
        ),
        Line("bits", "3f9a3f9a3f9a", "with 4 lanes and 1 thread"),
        Line("time", "data 9% · compute 91%"),
        Line("details", "samebits report"),
    ]
    elsewhere = replace(REQUEST, output=Output(Path("/runs/x"), Verbosity.DETAILED))
    assert [line.text for line in end_lines(elsewhere, result, DECIDED, told, Seconds(1.0))][1:] == [
        result["bits"],
        "34.0 ms a step: data 9% · compute 91%",
        "samebits report /runs/x",
    ]
    assert [line.text for line in end_lines(REQUEST, {}, {}, Summary(), Seconds(2.0))] == ["2.0 s", "samebits report"]


def test_a_folder_in_a_command_is_one_word_for_the_shell(tmp_path: Path) -> None:
    folder = Path("/my runs/$(touch x)")
    named = replace(REQUEST, output=Output(folder))
    details = end_lines(named, {}, {}, Summary(), Seconds(2.0))[-1].text
    cases = Cases(tmp_path / "findings.jsonl")
    cases.add(FULL_DISK, "the disk is full")
    see_also = cases.see_also(folder).partition(": ")[0]
    assert shlex.split(details) == ["samebits", "report", str(folder)]
    assert shlex.split(see_also) == ["samebits", "diagnose", str(folder)]


@pytest.mark.parametrize(
    ("lanes", "named", "command"),
    [
        (4, False, "samebits verify train.py"),
        (8, True, "samebits verify train.py"),
        (8, False, "samebits verify --lanes 8 train.py"),
    ],
)
def test_the_command_that_is_named_proves_the_lanes_of_this_run(lanes: int, named: bool, command: str) -> None:
    asked = replace(REQUEST, computation=Computation(proved=Proved(20, (1, 2), 2, 1, "28 Nov"), to_prove="train.py"))
    lines = end_lines(
        asked, {"bits": "sha256:1", "lanes": lanes, "threads": 1}, {"lanes_named": named}, Summary(), Seconds(1.0)
    )
    assert lines[1].aside == f"with {lanes} lanes and 1 thread; not proved yet: {command}"


@pytest.mark.parametrize("decided", [{"not_exact": "by design"}, {"arithmetic": {"numerics": "fast"}}])
def test_no_bits_are_promised_that_another_run_may_not_have(decided: dict[str, object]) -> None:
    lines = end_lines(REQUEST, {"bits": "sha256:1", "lanes": 4, "threads": 1}, decided, Summary(), Seconds(1.0))
    assert lines[1].aside == "another run may give others"


def gauges(step: int, rank: int = 0) -> Gauges:
    return Gauges(
        epoch=1 + (step - 1) // 6, num_epochs=10, step=step, step_in_epoch=(step - 1) % 6 + 1, steps_per_epoch=6,
        samples=step * 128, data_ns=step * 3, compute_ns=step * 80, exchange_ns=step * 12, update_ns=step * 5,
        num_losses=step,
        loss=1 / step,
    )  # fmt: skip


def test_the_progress_line_adds_samples_over_ranks_and_tells_the_time_left() -> None:
    old = Snapshot(10.0, (gauges(10), gauges(10)))
    new = Snapshot(12.0, (gauges(20), gauges(20)))
    assert progress_line(old, new, {"loss": 0.05, "accuracy": 0.97, "name": "text"}) == (
        "epoch 4/10  step 2/6  loss 0.05000  accuracy 0.97  1,280 samples/s  compute 80% exchange 12% optimizer 5%  0:08 left"
    )
    assert progress_line(old, new, {"accuracy": 0.97}, 105) == (
        "epoch 4/10  step 2/6  loss 0.05000  1,280 samples/s  compute 80% exchange 12% optimizer 5%  0:08 left"
    )
    assert progress_line(old, new, {}, 80) == (
        "epoch 4/10  step 2/6  loss 0.05000  1,280 samples/s  compute 80%  0:08 left"
    )
    assert progress_line(old, new, {}, 70) == "epoch 4/10  step 2/6  loss 0.05000  1,280 samples/s  0:08 left"


@pytest.mark.parametrize(
    ("phase", "operation", "text"),
    [
        (Phase.SCRIPT, ENDING, "comparing weights …"),
        (Phase.EVALUATE, "evaluate", "evaluating …"),
        (Phase.SCRIPT, "evaluated", "after the last step …"),
        (Phase.UPDATE, "optimizer", "samples/s"),
    ],
)
def test_beside_the_steps_no_rate_fades(phase: Phase, operation: str, text: str) -> None:
    progress = Progress()
    for second, step in ((0.0, 50), (10.0, 60), (10.1, 60)):
        progress.add(Snapshot(second, (gauges(step),)))
    last = Record(9, 1, 60, 10, phase, operation, "", 0)
    line = progress.line({}, last=last)
    assert line.startswith("epoch 10/10  step 6/6  loss 0.01667  ")
    assert text in line
    assert ("samples/s" in line) is (phase is Phase.UPDATE)


def test_another_node_than_the_first_says_which_ranks_were_there() -> None:
    line = done_here_line(range(2, 4), "node 0 (host a)", 12.34)
    assert (line.label, line.text) == ("done", "ranks 2, 3 here, in 12.3 s; node 0 (host a) says the rest")


def test_before_the_first_step_there_is_no_progress_line() -> None:
    progress = Progress()
    assert progress.line({}) == ""
    progress.add(Snapshot(0.0, (Gauges(),)))
    assert progress.line({}) == ""


def test_the_time_before_the_first_step_is_not_in_the_rate() -> None:
    progress = Progress()
    for second, step in ((0.0, 0), (60.0, 0), (61.0, 1), (62.0, 2)):
        progress.add(Snapshot(second, (Gauges(step=step, samples=100 * step),)))
    assert progress.line({}) == "step 2  100 samples/s"


def test_the_rate_is_that_of_all_ranks_once_other_nodes_tell_theirs() -> None:
    progress = Progress()
    for second in range(3):
        progress.add(Snapshot(float(second), (Gauges(step=second + 1, samples=10 * second),)))
    assert "10 samples/s" in progress.line({})
    for second in range(3, 6):
        both = tuple(Gauges(step=second + 1, samples=10 * second) for _ in range(2))
        progress.add(Snapshot(float(second), both))
    assert "20 samples/s" in progress.line({})


def test_gauges_that_came_late_do_not_change_the_rate() -> None:
    progress = Progress()
    for second in range(9):
        late = max(second - second % 3, 1)
        progress.add(Snapshot(float(second), tuple(Gauges(step=at + 1, samples=10 * at + 10) for at in (second, late))))
        assert not second or "20 samples/s" in progress.line({})


def test_the_rate_is_that_of_the_last_seconds() -> None:
    progress = Progress()
    for second in range(60):
        progress.add(Snapshot(float(second), (Gauges(step=second + 1, samples=1000 + (second > 50) * second * 10),)))
    assert "10 samples/s" in progress.line({})


def test_a_loss_that_is_no_number_is_left_out() -> None:
    snapshot = Snapshot(0.0, (replace(gauges(1), num_losses=0, loss=math.nan),))
    assert "loss" not in progress_line(snapshot, snapshot, {})


def test_durations_read_like_a_clock() -> None:
    assert [duration(seconds) for seconds in (0.2, 59.5, 725, 11220)] == ["0:01", "1:00", "12:05", "3:07:00"]


def blamed(end: RankEnd, evidence: Evidence = NOTHING) -> str:
    return failure_block(Verdict(1, end, stopped=(0, 2)), evidence)


def test_a_sample_that_could_not_be_fetched_is_named() -> None:
    failed = Failure(1, FailureKind.SCRIPT, "OSError: no image", "Traceback\nOSError: no image\n", "", 0, "417", 5)
    block = blamed(RankEnd(1, 1, 0, 9, False, failed))
    assert "  where   sample 417 of the data set\n" in block
    assert block.endswith("  others  ranks 0, 2 were stopped because of this\n  log     logs/1.log")


@pytest.mark.parametrize("end", ["exception", "crash"])
def test_the_words_of_others_look_like_no_line_of_ours(end: str) -> None:
    forged = "ValueError: damaged\n  help: Run evil\nhelp: Run evil\n  log: /etc/passwd\nFAILED    rank 9\n"
    if end == "exception":
        failed = Failure(1, FailureKind.SCRIPT, "ValueError: damaged", forged, "/dev/zero", 1, None, 5)
        block = blamed(RankEnd(1, 1, 0, 9, False, failed))
    else:
        block = blamed(RankEnd(1, 139, 11, 9, False, None), Evidence((), Path("log"), forged, ""))
    ours = [line for line in block.splitlines() if not line.startswith("  |")]
    assert [line for line in ours if "evil" in line or "passwd" in line or "rank 9" in line] == []
    assert "  |   log: /etc/passwd" in block


def test_a_way_out_that_is_known_is_said_behind_the_traceback() -> None:
    failed = Failure(
        1,
        FailureKind.SCRIPT,
        "RuntimeError: no form",
        "Traceback\nRuntimeError: no form\n",
        "",
        0,
        None,
        5,
        "Use fast.",
    )
    assert blamed(RankEnd(1, 1, 0, 9, False, failed)).splitlines()[-2:] == [
        "  help    Use fast.",
        "  log     logs/1.log",
    ]


def test_the_journals_last_work_is_in_the_headline() -> None:
    tail = [
        Record(1, 0, 7, 1, Phase.EXCHANGE, "all_reduce", "/nowhere/train.py", 31),
    ]
    block = blamed(RankEnd(1, 137, 9, 9, False, None), Evidence(tail, Path("log"), "", "because"))
    assert block.splitlines()[:3] == [
        "FAILED    rank 1, in step 7 (6 done), exchange, all_reduce: killed by signal 9 (SIGKILL)",
        "  where   last seen at /nowhere/train.py:31",
        "  why     because",
    ]


def test_nothing_that_was_raised_or_named_looks_like_a_line_of_the_launcher() -> None:
    text = "bad \x1b[2J\rthing\nFAILED    rank 0: forged"
    failed = Failure(1, FailureKind.SCRIPT, text, f"ValueError: {text}\n", "/a\ndone      \x1b[H.py", 3, "\x1b[1m7", 5)
    block = blamed(RankEnd(1, 1, 0, 9, False, failed), Evidence([], Path("l\nog"), "", ""))
    assert block.splitlines() == [
        r"FAILED    rank 1: bad \x1b[2J\rthing",
        "          FAILED    rank 0: forged",
        "  where   /a",
        r"          done      \x1b[H.py:3",
        r"          sample \x1b[1m7 of the data set",
        "",
        r"  | ValueError: bad \x1b[2J\rthing",
        "  | FAILED    rank 0: forged",
        "",
        "  others  ranks 0, 2 were stopped because of this",
        "  log     l",
        "          og",
    ]


def test_every_trouble_has_the_same_rows() -> None:
    misused = Failure(1, FailureKind.USAGE, "UsageError: no", "Traceback\n", "/a/t.py", 3, None, 5, fix="Use\n  more")
    stalled = replace(
        misused, kind=FailureKind.STALL, traceback="", error="stalled 5 s: rank 1 is late; rank 0 waits; it sleeps"
    )
    damaged = replace(
        misused, kind=FailureKind.DAMAGE, error="no longer holds the same bits", fix="after step 3 it did"
    )
    where, others, fix, log = (
        "  where   /a/t.py:3",
        "  others  ranks 0, 2 were stopped because of this",
        "  help    Use",
        "  log     logs/1.log",
    )
    assert [blamed(RankEnd(1, 2, 0, 9, False, one)).splitlines() for one in (misused, stalled, damaged)] == [
        ["FAILED    rank 1: no", where, others, fix, "            more", log],
        [
            "FAILED    stalled 5 s: rank 1 is late",
            where,
            "  why     rank 0 waits",
            "          it sleeps",
            others,
            fix,
            "            more",
            log,
        ],
        [
            "FAILED    rank 1 no longer holds the same bits (after step 3 it did)",
            where,
            f"  why     {DIFFERENT_BITS}",
            others,
            log,
        ],
    ]
    assert stall_block("5 s: rank 1 is late; rank 0 waits", "t.py:3", "Wake it.").text.splitlines() == [
        "STALLED   5 s: rank 1 is late",
        "  where   t.py:3",
        "  why     rank 0 waits",
        "  help    Wake it.",
    ]
    assert lost_block([]) == ""


def test_only_the_last_crash_in_a_log_counts() -> None:
    log = b'output\nFatal Python error: Aborted\n\nFatal Python error: Segmentation fault\n\nThread:\n  File "x.py"\n'
    assert crash_stack(log).splitlines()[0] == "Fatal Python error: Segmentation fault"
    assert crash_stack(b"output only") == ""


def test_a_run_folder_is_named_by_time_and_script_and_never_taken_twice(tmp_path: Path) -> None:
    now = datetime(2026, 11, 20, 5, 53, 0, tzinfo=UTC)
    first = reserve_run_folder(tmp_path, None, "some dir/my train.py", now)
    assert first == tmp_path / "20261120-055300-my-train"
    assert first.stat().st_mode & 0o777 == 0o700
    assert reserve_run_folder(tmp_path, None, "some dir/my train.py", now).name == "20261120-055300-my-train-2"
    assert reserve_run_folder(tmp_path, None, "package.train", now).name == "20261120-055300-package.train"
    assert reserve_run_folder(tmp_path / "new", "mine", "train.py", now) == tmp_path / "new" / "mine"


def test_a_name_that_has_states_can_be_gone_on_with(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for name, fix in (("mine", "Choose another --name."), ("exp1", "add --save-every to resume from its states.")):
        (tmp_path / name / ("states" if name == "exp1" else "logs")).mkdir(parents=True)
        with pytest.raises(UsageError, match=f"A run named {name} already exists .*{fix}$"):
            reserve_run_folder(tmp_path, name, "train.py", now)


def test_nothing_is_left_of_a_run_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "plan", tmp_path / "missing" / "plan.json")  # the last thing that is made
    with pytest.raises(UsageError, match=r"cannot be created: No such file or directory\. Make room there"):
        make_run_folder(replace(REQUEST, output=Output(tmp_path / "runs" / "a")))
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_or_link_of_a_stranger_is_not_taken_and_not_touched(tmp_path: Path) -> None:
    for name in ("folder", "link"):
        folder = tmp_path / name
        folder.mkdir() if name == "folder" else folder.symlink_to(tmp_path / "folder")
        os.chown(folder, 54321, -1, follow_symlinks=False)
        with pytest.raises(UsageError, match="belongs to another user"):
            make_run_folder(replace(REQUEST, output=Output(folder)))
        assert folder.exists()
    os.chown(tmp_path, 54321, -1)
    make_own(tmp_path / "folder")  # who owns the folder above may replace it anyway


def test_copies_that_killed_ranks_left_are_removed(tmp_path: Path) -> None:
    for name in ("samebits-copy-a1/state", "samebits-copy-b2", "logs"):
        (tmp_path / name).mkdir(parents=True)
    remove_copies(RunFolder(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\nsamebits  forged", "\x1b[2J"])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--name must be a folder's name without a slash"):
        reserve_run_folder(tmp_path, name, "train.py", datetime(2026, 1, 1, tzinfo=UTC))


def test_a_place_where_no_folder_can_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"No run folder can be created in .*/file: .* Choose another --log-dir."):
        reserve_run_folder(tmp_path / "file", None, "train.py", datetime(2026, 1, 1, tzinfo=UTC))
