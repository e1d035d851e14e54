"""What cannot be written is reported, and a run that lacks something does not end with exit code 0."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.protocol.journal.failure import Failure, FailureKind, decode_failure, shortened
from samebits.protocol.journal.ring import LOST_BYTES, JournalReader, JournalWriter, make_ring
from samebits.protocol.journal.signals import Event, News, read_news
from samebits.rank.position.metrics import append_line
from tests.support.launching import LIMIT_S, write_script
from tests.support.promises import promise

SMALL_DISK = 'mkdir -p samebits-runs && mount -t tmpfs -o size=2m none samebits-runs && "$@"; code=$?; cp -r samebits-runs kept; exit $code'
"""A shell's text: a command with its run folders on a disk of 2 MB, which are copied when it has ended."""
IN_A_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")

TRAINING = """
    import sys, torch, samebits
    run = samebits.init(lanes=1, threads=1)
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for epoch in run.epochs(4):
        for step in run.steps(loader):
            step.backward(lambda batch: (model(batch[0]) - batch[1]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(100):
                run.log(loss=step.loss)
        print("epoch", epoch, "of some words which go into the log of the rank as well " * 20)
        if epoch == 1:
            with open("samebits-runs/filling", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(1000))
                except OSError as error:
                    print(error)
    if len(sys.argv) > 1:
        raise ValueError("after it was full")
"""


def run_on_a_small_disk(place: Path, *args: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run TRAINING under `samebits run -n 1`; return what it said, and a copy of its run folder."""
    probe = subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("mount namespaces cannot be made here")
    script = write_script(place, TRAINING)
    command = [
        *IN_A_NAMESPACE,
        "sh",
        "-c",
        SMALL_DISK,
        "sh",
        sys.executable,
        "-m",
        "samebits",
        "run",
        "-n",
        "1",
        script,
    ]
    done = subprocess.run(
        [*command, *args],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    [folder] = (path for path in (place / "kept").iterdir() if path.is_dir())
    return done, folder


@pytest.mark.ranks
def test_a_full_run_folder_is_said_and_ends_no_training_and_leaves_whole_lines(tmp_path: Path) -> None:
    done, folder = run_on_a_small_disk(tmp_path)
    assert done.returncode == 1
    assert "epoch 3" in done.stdout
    lost = ["metrics.jsonl cannot be written (No space left on device)", "result.json cannot be written"]
    lost.append("logs/rank-00000.log cannot be written (No space left on device): later output of rank 0 is not in it")
    said, _, block = done.stderr.partition(
        "FAILED    the script ended well, but some of its output could not be written\n"
    )
    for sentence in lost:
        assert said.count(sentence) == 1
        assert block.count(sentence) == 1
    assert block.count("\n") == 3
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] in (4, 5), "the disk was full after step 4; room in a page may be left"
    assert (folder / "logs" / "rank-00000.log").read_text().endswith("\n")


@pytest.mark.thorough
@pytest.mark.ranks
def test_an_exception_is_told_although_its_record_cannot_be_written(tmp_path: Path) -> None:
    done, folder = run_on_a_small_disk(tmp_path, "fail")
    assert done.returncode == 1
    assert "FAILED    rank 0, after step 8, in the script: ValueError: after it was full" in done.stderr
    assert 'raise ValueError("after it was full")' in done.stderr
    assert list((folder / "failures").iterdir()) == []


@promise(
    "bad-input-and-what-a-person-is-told",
    "Output that cannot be written, and a full run folder, are reported once, end no training, and the "
    "exit code is not 0",
    also=["test_a_full_run_folder_is_said_and_ends_no_training_and_leaves_whole_lines"],
)
@pytest.mark.ranks
def test_output_to_a_full_disk_is_not_lost_in_silence(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print('lost'); print('lost too')")
    command = [sys.executable, "-m", "samebits", "run", "-q", "-n", "1", "--start-method=spawn", "x.py"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
        )
    [log] = (tmp_path / "samebits-runs").glob("*/logs/rank-00000.log")
    assert done.returncode == 1
    warning, headline, sentence = done.stderr.splitlines()
    assert warning.startswith("warning   standard output cannot be written (No space left on device)")
    assert warning.endswith(f"is only in {log.relative_to(tmp_path)}")
    assert headline == "FAILED    the script ended well, but some of its output could not be written"
    assert sentence.removeprefix("  why     ") == warning.removeprefix("warning").strip()
    assert log.read_text() == "lost\nlost too\n"


@pytest.mark.parametrize("err", ["/dev/full", pytest.param("closed", marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_a_script_under_python_trains_to_its_end_where_notices_cannot_be_printed(tmp_path: Path, err: str) -> None:
    script = write_script(tmp_path, TRAINING.replace('open("samebits-runs/filling"', 'open("/dev/full"'))
    command = f"exec {sys.executable} {script} 2>{'&-' if err == 'closed' else err}"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
    )
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("epoch")] == ["0", "1", "2", "3"]
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", ["--version", "run --help"])
def test_a_command_says_that_its_output_cannot_be_written(arguments: str) -> None:
    command = [sys.executable, "-m", "samebits", *arguments.split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (1, "error: the output cannot be used: No space left on device.\n")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*command, "--no-such"], stderr=full, timeout=LIMIT_S, check=False)
    assert done.returncode == 2


STATES = "samebits-runs/exp1/states"
BY_ITSELF = """
    import os, select, subprocess, sys, torch, samebits
    from pathlib import Path
    from samebits.protocol.state_files.whole_state import trouble_of
    from samebits.rank.checkpoint.store.store import Store
    from samebits.testing.digests import digest_of
    states = Path("samebits-runs/exp1/states")
    run = samebits.init(lanes=1, threads=1, name="exp1", save_every="1steps", keep=2)
    model = torch.nn.Linear(100, 100)
    data = torch.utils.data.TensorDataset(torch.randn(36, 100))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = run.prepare(model, torch.optim.AdamW(model.parameters()), loader)

    def fill():
        with (states / "filling").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1000))

    def remount(how):
        subprocess.run(["mount", "-o", f"remount,{how}", str(states)], check=True)

    def act(number):
        if number == 3:
            try:
                fill()
            except OSError:
                pass
        elif number == 5:
            (states / "filling").unlink()
        elif number == 6:
            remount("ro")
        elif number == 8:
            remount("rw")

    for _ in run.epochs(1):
        for step in run.steps(loader):
            if step.number > 1:  # the state of the step before is written, or has failed
                select.select([run._run.components.states.automatic._checkpointer._writer._channel], [], [])
                if len(sys.argv) > 1:
                    whole = [path for path in reversed(Store(states, 2).newest_first()) if trouble_of(path) is None]
                    print("before", step.number, "are", *(int(path.name[5:]) for path in whole), flush=True)
                    act(step.number)
            step.backward(lambda batch: model(batch[0]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    print("bits", digest_of(model, optimizer))
    samebits.finish()
    print("left", *sorted(path.name for path in states.iterdir()))
"""


@pytest.mark.thorough
@pytest.mark.ranks
def test_a_full_or_read_only_place_of_states_is_said_at_once_and_older_states_stay(tmp_path: Path) -> None:
    if subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces cannot be made here")
    script, said = write_script(tmp_path, BY_ITSELF), {}
    mount = f'mkdir -p {STATES} && mount -t tmpfs -o size=1m none {STATES} && exec "$@"'
    for place, more in (("straight", []), ("small", ["act"])):
        (tmp_path / place).mkdir()
        done = subprocess.run(
            [*IN_A_NAMESPACE, "sh", "-c", mount, "sh", sys.executable, tmp_path / script, *more],
            cwd=tmp_path / place,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said[place] = done
    lines = said["small"].stdout.splitlines()
    found = {int(line.split()[1]): [int(step) for step in line.split()[3:]] for line in lines if "are" in line}
    assert found == {2: [1], 3: [1, 2], 4: [1, 2], 5: [1, 2], 6: [2, 5], 7: [2, 5], 8: [2, 5], 9: [5, 8]}
    assert lines[-2:] == said["straight"].stdout.splitlines()[-2:]
    begins = f"samebits: The state could not be written to {tmp_path / 'small' / STATES}/step-0000000"
    told = [line.removeprefix(begins) for line in said["small"].stderr.splitlines() if "state" in line]
    full, read_only = "[Errno 28] No space left on device", "[Errno 30] Read-only file system"
    assert [line[: line.index(":")] for line in told] == ["3", "4", "6", "7"]
    assert all(one in line for one, line in zip([full, full, read_only, read_only], told, strict=True)), told
    assert all(line.endswith(" The run continues.") for line in told)


def with_small_files(program: str, *args: str) -> None:
    """Run `program` in an interpreter whose files may not grow beyond 1000 bytes."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    subprocess.run([sys.executable, "-c", limit + program, *args], check=True, timeout=LIMIT_S)


def test_a_log_ends_with_a_whole_line(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from samebits.launcher.terminal.rank_output import RankLog\n"
        "log = RankLog(Path(sys.argv[1]))\n"
        "said = [log.write(data) for data in (b'x' * 600 + b'\\nha', b'lf\\n' + b'y' * 600, b'later\\n')]\n"
        "assert said == ['', 'File too large', ''], said"
    )
    with_small_files(program, str(tmp_path / "log"))
    assert (tmp_path / "log").read_text() == "x" * 600 + "\nhalf\n"


@pytest.mark.thorough
def test_a_line_is_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    append_line(file, "first")
    program = (
        "import sys; from pathlib import Path; from samebits.rank.position.metrics import append_line\n"
        "try: append_line(Path(sys.argv[1]), 'x' * 1000)\n"
        "except OSError: append_line(Path(sys.argv[1]), 'last')\n"
    )
    with_small_files(program, str(file))
    assert file.read_text() == "first\nlast\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_was_lost_is_read_from_the_journal(tmp_path: Path) -> None:
    make_ring(tmp_path / "ring", 0)
    writer, reader = JournalWriter(tmp_path / "ring"), JournalReader(tmp_path / "ring")
    assert reader.lost() == []
    writer.lost("a\x1b[2J cannot be written")
    writer.lost("a\x1b[2J cannot be written")
    JournalWriter(tmp_path / "ring").lost("b cannot be written")
    assert reader.lost() == [r"a\x1b[2J cannot be written", "b cannot be written"]
    writer.lost("é" * LOST_BYTES)
    writer.note({"loss": 1.0})
    assert reader.lost()[0] == r"a\x1b[2J cannot be written"
    assert reader.note() == {"loss": 1.0}
    assert reader.gauges().step == 0


def test_a_record_that_goes_through_a_pipe_is_short_enough() -> None:
    failure = Failure(3, FailureKind.SCRIPT, "ValueError: " + "é" * 9000, "x" * 9000 + "the end", "/a.py", 3, "7", 5)
    short = shortened(failure, 3500)
    reads, writes = os.pipe()
    News(3, Event.FAILED, failure=short).tell(writes)
    line = os.read(reads, 1 << 16)
    assert len(line) <= select.PIPE_BUF
    assert short.traceback.endswith("the end")
    assert read_news(line) == News(3, Event.FAILED, failure=short)
    os.close(reads)
    os.close(writes)
    assert decode_failure({"rank": 1}) is decode_failure("text") is decode_failure(None) is None
