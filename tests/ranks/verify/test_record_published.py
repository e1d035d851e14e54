"""`samebits record export`: what is in the folder, what is kept out of it, and that it is there completely or not at all."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from samebits.cli import main
from samebits.protocol.record.lines import DIFFERS, decoded, unlinked
from samebits.protocol.record.reading import read_record
from samebits.verify.record import publishing
from samebits.verify.record.private import Self
from tests.support.launching import run_script
from tests.support.promises import promise
from tests.support.recorded import START_HERE, body_of, lines_of, write_lines

pytestmark = pytest.mark.ranks

SCRIPT = """
    import os, signal, sys, torch, samebits

    run = samebits.init(seed=0, lanes=4, threads=1)
    inputs = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[1]))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=16, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for epoch in run.epochs(2):
        for step in run.steps(loader):
            if os.environ.get("KILLS") and step.number == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            step.backward(lambda batch: model(batch[0]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
"""
STEPS, STATES = 12, [3, 6, 9, 12]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `exp1`, of which a rank was killed."""
    place = tmp_path_factory.mktemp("recorded")
    options = ("--record", "--name", "exp1", "-n", "2", "--save-every", "3steps", "--keep", "9")
    ended = run_script(place, SCRIPT, *options, args=["0.01"], env={"KILLS": "1"})
    assert ended.code == 0, ended.err
    return place


@pytest.fixture
def place(recorded: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(recorded, tmp_path / "copy", symlinks=True))


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Call:
    """Call `samebits record` with these words beside the run; its exit code, output and errors."""
    where = request.getfixturevalue("place" if "place" in request.fixturenames else "tmp_path")
    monkeypatch.chdir(where)

    def called(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["samebits", "record", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return called


def check_sums(folder: Path) -> bool:
    done = subprocess.run(["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, capture_output=True)
    return done.returncode == 0


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@promise(
    "a-run-can-be-checked",
    "A published record has the run's own chain, the SHA-256 of each state, and no absolute path, machine or user in it",
    also=["test_a_folder_is_there_completely_or_not_at_all", "test_a_signature_holds_until_a_byte_is_changed"],
)
def test_a_record_is_published_with_its_states(place: Path, call: Call) -> None:
    code, out, err = call("export", "exp1", "published", "--states", "all")
    assert (code, err) == (0, "")
    assert "command   script.py 0.01\n" in out
    folder = place / "published"
    assert check_sums(folder)
    named = {line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert files_in(folder).keys() == {*named, "SHA256SUMS"}
    mine, published = read_record(place / "samebits-runs/exp1/record.jsonl"), read_record(folder / "record.jsonl")
    assert (published.broken, published.gaps, published.end) == ("", [], mine.end)
    assert published.lines == mine.lines
    assert published.condition_lines == mine.condition_lines
    assert len(published.starts) == len(mine.starts) == 2
    assert [*published.states] == STATES
    for step in STATES:
        name = f"states/step-{step:08d}"
        assert files_in(folder / name) == files_in(place / "samebits-runs/exp1" / name)
    texts = b"\n".join(one for name, one in files_in(folder).items() if not name.endswith(".safetensors")).decode()
    for private in (str(Path.home()), str(place), os.environ.get("USER", ""), getpass.getuser(), socket.gethostname()):
        if private not in ("", "root", "/root"):
            assert private not in texts
    assert call("diff", "exp1", "published")[0] == 0
    done = subprocess.run(
        [sys.executable, "-m", "samebits", "audit", "-q", "--all", "published", "script.py", "0.01"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_states_their_hashes_are_there_and_their_bytes_are_told(place: Path, call: Call) -> None:
    code, out, _ = call("export", "exp1", "published")
    assert code == 0
    assert "left out: the files of 4 states, " in out
    assert "--states all copies them" in out
    assert files_in(place / "published").keys() == {"record.jsonl", "README.txt", "SHA256SUMS"}
    assert [*read_record(place / "published/record.jsonl").states] == STATES
    assert "of 4 states only the SHA-256 of its files" in " ".join(call("show", "published")[1].split())
    # Once more, from what was published.
    assert call("export", "published", "again")[0] == 0
    assert (place / "again/record.jsonl").read_bytes() == (place / "published/record.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("number", "steps"), [("0", []), ("1", [12]), ("2", [3, 12]), ("3", [3, 6, 12]), ("9", STATES)]
)
def test_as_many_states_as_are_wanted_are_copied(place: Path, call: Call, number: str, steps: list[int]) -> None:
    code, out, _ = call("export", "exp1", "published", "--states", number, "--json")
    assert code == 0
    assert json.loads(out)["files"] == len(files_in(place / "published"))
    copied = [int(path.name[5:]) for path in sorted((place / "published").glob("states/*"))]
    assert copied == steps


def test_a_state_that_is_damaged_is_left_out_and_told(place: Path, call: Call) -> None:
    weights = place / "samebits-runs/exp1/states/step-00000006/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    (place / "samebits-runs/exp1/states/step-00000009/manifest.json").write_text("{}")
    code, out, _ = call("export", "exp1", "published", "--states", "all", "--json")
    assert code == 0
    assert [*read_record(place / "published/record.jsonl").states] == [3, 12]
    damaged, of_manifest = sorted(json.loads(out)["left_out"])
    assert "step-00000006/model.safetensors is damaged" in damaged
    assert "step-00000009/manifest.json is damaged" in of_manifest


@pytest.mark.parametrize("kind", ["link", "fifo", "device", "folder", "states", "state", "name"])
def test_hostile_folders_lead_nowhere(place: Path, call: Call, tmp_path: Path, kind: str) -> None:
    states, secret = place / "samebits-runs/exp1/states", tmp_path / "secret"
    secret.write_text("of somebody else")
    one = states / "step-00000006"
    file = one / "optimizer.safetensors"
    if kind in ("link", "fifo", "device", "folder"):
        file.unlink()
        makes = {"link": lambda: file.symlink_to(secret), "fifo": lambda: os.mkfifo(file), "folder": file.mkdir}
        makes.get(kind, lambda: file.symlink_to("/dev/zero"))()
    elif kind == "states":
        states.rename(tmp_path / "elsewhere")
        states.symlink_to(tmp_path / "elsewhere")
    elif kind == "state":
        one.rename(tmp_path / "elsewhere")
        one.symlink_to(tmp_path / "elsewhere")
    else:
        one.rename(states / "step-00000006\x1b[2J\n")
        (states / "..strange").mkdir()
        (states / "step-00000003" / "more.txt").write_text("of somebody else")
    code, out, _ = call("export", "exp1", "published", "--states", "all")
    assert code == 0
    published = [*read_record(place / "published/record.jsonl").states]
    assert 6 not in published
    assert published == ([] if kind == "states" else [step for step in STATES if step != 6])
    assert check_sums(place / "published")
    assert not any(path.is_symlink() for path in (place / "published").rglob("*"))
    assert not any(b"of somebody else" in data for data in files_in(place / "published").values())
    assert "\x1b" not in out


def test_a_record_that_is_a_link_or_no_file_is_not_read(tmp_path: Path, call: Call) -> None:
    write_lines(tmp_path / "other.jsonl", lines_of(range(1, 4)))
    for kind in ("link", "fifo"):
        (tmp_path / kind).mkdir()
    (tmp_path / "link" / "record.jsonl").symlink_to("../other.jsonl")
    os.mkfifo(tmp_path / "fifo" / "record.jsonl")
    for word in ("link", "fifo", "fifo/record.jsonl"):
        code, _, err = call("export", word, "published")
        assert (code, err[:7]) == (2, "error: ")
        assert not (tmp_path / "published").exists()


# What is kept out: no ranks are needed


def start_of(tmp_path: Path, *arguments: str, **others: object) -> None:
    lines = lines_of(range(1, 4))
    lines[1] = unlinked({**START_HERE, "arguments": [*arguments], **others})
    write_lines(tmp_path / "exp1" / "record.jsonl", lines)


@pytest.mark.parametrize("words", [["--api-key", "opensesame"], ["--data", "/data/private"], ["--note", "jane's"]])
def test_arguments_that_are_private_stop_it_until_they_are_left_out(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(publishing, "myself", lambda: Self("/home/jane", "jane", ("larch07",)))
    start_of(tmp_path, *words)
    code, out, err = call("export", "exp1", "published")
    assert (code, out) == (2, "")
    assert "which would become public.\nhelp: Give --redact" in err
    assert words[1] not in err
    assert [*tmp_path.iterdir()] == [tmp_path / "exp1"]
    code, out, _ = call("export", "exp1", "published", "--redact")
    assert code == 0
    data = b"".join(files_in(tmp_path / "published").values()).decode()
    assert words[1] not in data + out
    assert "samebits audit published train.py ARGS" in data
    published = read_record(tmp_path / "published/record.jsonl")
    assert published.starts[0]["arguments"] == ["…"]
    assert published.lines == read_record(tmp_path / "exp1/record.jsonl").lines
    # It is published once more as it is.
    assert call("export", "published", "again")[0] == 0


@pytest.mark.parametrize(
    "conditions",
    [
        {"environment": {"OPENBLAS_CORETYPE": "/opt/jane"}},
        {"environment": {"API_TOKEN": "opensesame"}},
        {"script": "/home/jane/train.py"},
        {"files": {"/home/jane/train.py": "ab"}},
    ],
)
def test_conditions_that_are_private_cannot_be_published(
    tmp_path: Path, call: Call, conditions: dict[str, object]
) -> None:
    write_lines(tmp_path / "exp1" / "record.jsonl", lines_of([1, 2], conditions))
    for words in ([], ["--redact"]):
        code, _, err = call("export", "exp1", "published", *words)
        assert code == 2
        assert "The conditions hold " in err
        assert "opensesame" not in err
        assert not (tmp_path / "published").exists()


def test_only_lines_that_count_are_published(tmp_path: Path, call: Call) -> None:
    lines = lines_of(range(1, 9), end="sha256:ab")
    again = lines_of(range(1, 6), {"torch": "2.10.0"})[1:]
    write_lines(tmp_path / "exp1" / "record.jsonl", [*lines, *again])
    with (tmp_path / "exp1" / "record.jsonl").open("ab") as file:
        file.write(b'{"step":6,"epo')
    code, out, _ = call("export", "exp1", "published")
    assert code == 0
    assert "left out: the last line, which is cut\n" in out
    published = (tmp_path / "published/record.jsonl").read_bytes().splitlines()
    assert published[1:] == [lines[1], *again]
    assert (tmp_path / "exp1" / "record.jsonl").read_bytes().startswith(b"\n".join(lines))


def test_a_record_that_ends_in_a_difference_is_published_with_it(tmp_path: Path, call: Call) -> None:
    differs = unlinked({DIFFERS: 2, "was": body_of(2), "is": body_of(2, loss=[9.0])})
    write_lines(tmp_path / "exp1" / "record.jsonl", [*lines_of(range(1, 4)), differs])
    assert call("export", "exp1", "published")[0] == 0
    assert read_record(tmp_path / "published/record.jsonl").differs == decoded(differs)
    assert call("show", "published")[0] == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("exp1", "exp1"), "is there already"),
        (("exp1", "link"), "is there already"),
        (("exp1", "none/published"), "There is no folder"),
        (("exp1", "published", "--states", "some"), "--states some cannot be read"),
        (("exp1", "published", "--states", "-1"), "--states -1 cannot be read"),
        (("broken", "published"), "proves nothing: the chain breaks"),
        (("empty", "published"), "has no step yet"),
        (("nothing", "published"), "There is no run and no record nothing"),
    ],
)
def test_mistakes_leave_nothing(tmp_path: Path, call: Call, words: tuple[str, ...], why: str) -> None:
    lines = lines_of(range(1, 4))
    write_lines(tmp_path / "exp1" / "record.jsonl", lines)
    write_lines(tmp_path / "broken" / "record.jsonl", [*lines[:3], *lines[4:]])
    write_lines(tmp_path / "empty" / "record.jsonl", lines[:2])
    (tmp_path / "link").symlink_to("nowhere")
    before = {*tmp_path.iterdir()}
    code, out, err = call("export", *words)
    assert (code, out) == (2, "")
    assert why in err
    assert {*tmp_path.iterdir()} == before


KILLED = """
import os, signal, sys
from samebits.cli import main
from samebits.verify.record import publishing

def killed(*_):
    os.kill(os.getpid(), int(sys.argv.pop()))

publishing.sync = killed
sys.argv[0] = "samebits"
main.main()
"""


@pytest.mark.parametrize("number", ["9", "15", "2"])
def test_a_folder_is_there_completely_or_not_at_all(tmp_path: Path, call: Call, number: str) -> None:
    write_lines(tmp_path / "exp1" / "record.jsonl", lines_of(range(1, 4)))
    words = [sys.executable, "-c", KILLED, "record", "export", "exp1", "published", number]
    script = KILLED.replace("int(sys.argv.pop())", number)
    done = subprocess.run([*words[:2], script, *words[3:-1]], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode in (-9, 143, 130), done.stderr
    assert not (tmp_path / "published").exists()
    left = {one.name for one in tmp_path.iterdir()} - {"exp1"}
    assert len(left) == (number == "9")
    assert call("export", "exp1", "published")[0] == 0
    assert {one.name for one in tmp_path.iterdir()} == {"exp1", "published"}
    assert check_sums(tmp_path / "published")


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path / "exp1" / "record.jsonl", lines_of(range(1, 4)))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device", "published")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = call("export", "exp1", "published")
    assert code == 1
    assert "No space left on device" in err
    assert [*tmp_path.iterdir()] == [tmp_path / "exp1"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_signature_holds_until_a_byte_is_changed(tmp_path: Path, call: Call) -> None:
    """As the page "Check a run" writes it."""
    write_lines(tmp_path / "exp1" / "record.jsonl", lines_of(range(1, 4)))
    assert call("export", "exp1", "published")[0] == 0
    folder = tmp_path / "published"

    def keygen(*words: str, told: bytes = b"") -> int:
        return subprocess.run(["ssh-keygen", *words], cwd=folder, input=told, capture_output=True).returncode

    assert keygen("-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(tmp_path / "key")) == 0
    assert keygen("-Y", "sign", "-f", str(tmp_path / "key"), "-n", "samebits", "SHA256SUMS") == 0
    public = (tmp_path / "key.pub").read_text()
    (tmp_path / "signers").write_text(f"jane@example.org {public}")
    verify = ("-Y", "verify", "-f", str(tmp_path / "signers"), "-I", "jane@example.org", "-n", "samebits")
    verify = (*verify, "-s", "SHA256SUMS.sig")
    sums = (folder / "SHA256SUMS").read_bytes()
    assert keygen(*verify, told=sums) == 0
    assert check_sums(folder)
    assert keygen(*verify, told=sums.replace(b"a", b"b", 1)) != 0
    record = folder / "record.jsonl"
    data = bytearray(record.read_bytes())
    data[-40] ^= 1
    record.write_bytes(data)
    assert not check_sums(folder)
    assert keygen(*verify, told=sums) == 0, "the sums are as they were; sha256sum tells what is not"
