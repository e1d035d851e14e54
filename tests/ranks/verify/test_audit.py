"""`samebits run --record` and `samebits audit`: a run that was killed is checked elsewhere; each forgery is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samebits.protocol.record.lines import CHAIN, Chain, decoded
from samebits.protocol.record.reading import read_record
from samebits.protocol.state_files.manifest import Manifest, SavedFile
from tests.ranks.verify.test_replay import files_of
from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
    import json, os, signal, sys, torch, samebits

    run = samebits.init(seed=0, lanes=4, threads=1)
    rows = torch.tensor(json.loads(open("data.json").read()))
    inputs, targets = rows[:, :6], rows[:, 6:]
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[1]))
    data = torch.utils.data.TensorDataset(inputs, targets)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for epoch in run.epochs(4):
        for step in run.steps(loader):
            if os.environ.get("KILLS") and (step.number, run.rank, restarts) in ((5, 0, 0), (10, 2, 1)):
                os.kill(os.getpid(), signal.SIGKILL)
            if os.environ.get("CHANGES") and step.number == 6 and restarts:
                optimizer.param_groups[0]["weight_decay"] = 0.5
            step.backward(lambda batch: (model(batch[0]) - batch[1]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
"""
STEPS = 12
WORDS = ("script.py", "0.01")
RECORD = "samebits-runs/exp1/record.jsonl"


def made(folder: Path, *options: str, **variables: str) -> Path:
    """A folder with the run `exp1`."""
    import torch

    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(48, 7, generator=generator).double()
    (folder / "data.json").write_text(json.dumps(rows.tolist()))
    ended = run_script(folder, SCRIPT, "--record", "--name", "exp1", *options, args=["0.01"], env=variables)
    assert ended.code == 0, ended.err
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `exp1` of four ranks, of which two were killed."""
    place = tmp_path_factory.mktemp("recorded")
    return made(place, "-n", "4", "--save-every", "3steps", "--keep", "9", KILLS="1")


@pytest.fixture
def place(recorded: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(recorded, tmp_path / "copy", symlinks=True))


def audited(place: Path, *words: str, code: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "samebits", "audit", "-q", "--json", *words]
    ended = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL, check=False
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    return dict(json.loads(ended.stdout)) if code != 2 else {"said": ended.stderr}


def rewritten(place: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Let `change` forge each line; the chain is made anew."""
    path, chain, lines = place / RECORD, Chain(), []
    for line in path.read_bytes().splitlines():
        body = change(dict(decoded(line)))
        if body is None:
            continue
        if body.pop(CHAIN, None) is None:
            lines.append(json.dumps(body, separators=(",", ":")).encode())
            continue
        lines.append(chain.line(body))
    path.write_bytes(b"\n".join([*lines, b""]))


@promise(
    "a-run-can-be-checked",
    "`samebits audit` makes steps of a recorded run again, on any ranks and strategy, and finds any other step, state or end; "
    "a record of killed ranks is that of one rank",
    also=[
        "test_data_that_were_changed_are_named_by_step_and_lane",
        "test_a_forged_loss_is_named",
        "test_a_bit_of_a_state_is_named",
        "test_other_conditions_are_no_pass",
        "test_a_step_that_came_again_otherwise_ends_the_record",
    ],
)
def test_a_run_with_kills_is_checked_on_other_ranks(recorded: Path, tmp_path: Path) -> None:
    before = files_of(recorded)
    for words in ((), ("--all", "-n", "2", "--strategy", "zero1"), ("--all", "-n", "2", "--strategy", "pipeline")):
        found = audited(recorded, *words, "exp1", code=0)
        assert (found["verdict"], found["differences"], found["gaps"]) == ("match", [], [])
    # A kill may lose the state that is being written.
    assert (found["steps"], found["states"][-2:], found["end"]) == (STEPS, [9, 12], True)
    assert "3 starts" in found["the_record_says"]
    assert files_of(recorded) == before
    alone = read_record(made(tmp_path, "-n", "1") / RECORD)
    assert alone.link(STEPS) == read_record(recorded / RECORD).link(STEPS)


def test_a_segment_begins_at_a_state_and_the_auditor_names_the_script(place: Path) -> None:
    found = audited(place, "--steps", "8:9", "exp1", *WORDS, code=0)
    assert (found["segments"], found["steps"], found["states"]) == ([[7, 9]], 3, [9])


def test_data_that_were_changed_are_named_by_step_and_lane(place: Path) -> None:
    rows = json.loads((place / "data.json").read_text())
    rows[17][6] += 1e-6
    (place / "data.json").write_text(json.dumps(rows))
    found = audited(place, "--all", "exp1", *WORDS, code=1)
    (text,) = found["differences"]
    assert "has samples with other contents here than in the record, in lane" in text
    (samples,) = found["samples"].values()
    assert "17" in samples


def test_swapped_samples_are_named(place: Path) -> None:
    rows = json.loads((place / "data.json").read_text())
    rows[3], rows[40] = rows[40], rows[3]
    (place / "data.json").write_text(json.dumps(rows))
    assert "other contents" in audited(place, "exp1", *WORDS, code=1)["differences"][0]


def test_another_rate_is_named(place: Path) -> None:
    found = audited(place, "exp1", "script.py", "0.02", code=1)
    assert found["differences"] == ["the learning rate of step 1 is 0.01 in the record, and 0.02 here"]
    assert found["program"] == ["the arguments differ"]


def test_a_line_that_was_changed_or_left_out_breaks_the_chain(place: Path) -> None:
    path = place / RECORD
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.startswith(b'{"step":7,'))
    for forged in (
        [*lines[:at], lines[at].replace(b'"epoch":3', b'"epoch":2'), *lines[at + 1 :]],
        [*lines[:at], *lines[at + 1 :]],
    ):
        path.write_bytes(b"".join(forged))
        assert "the chain breaks at step" in audited(place, "--no-replay", "exp1", code=1)["record"]
        audited(place, "exp1", code=1)
    rewritten(place, lambda body: body)
    assert audited(place, "--no-replay", "exp1", code=125)["gaps"] == [[7, 7]]


def test_a_forged_loss_is_named(place: Path) -> None:
    rewritten(place, lambda body: {**body, "loss": [body["loss"][0] * (1 + 2e-16)]} if body.get("step") == 5 else body)
    audited(place, "--no-replay", "exp1", code=0)
    found = audited(place, "--all", "exp1", code=1)
    assert found["differences"][0].startswith("the loss of step 5 is ")


def test_other_bits_at_the_end_are_named(place: Path) -> None:
    rewritten(place, lambda body: {**body, "bits": f"sha256:{'0' * 64}"} if "end" in body else body)
    assert "the model at the end has bits 000000000000" in audited(place, "--all", "exp1", code=1)["differences"][0]


def test_a_bit_of_a_state_is_named(place: Path) -> None:
    state = place / "samebits-runs/exp1/states/step-00000006"
    weights = bytearray((state / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (state / "model.safetensors").write_bytes(weights)
    assert "SHA-256" in audited(place, "--no-replay", "exp1", code=1)["damaged_states"]["6"]
    manifest = Manifest.decode((state / "manifest.json").read_bytes(), state)
    files = dict(manifest.files)
    files["model.safetensors"] = SavedFile(
        len(weights), SavedFile.of(bytes(weights)).sha256, files["model.safetensors"].tensors
    )
    (state / "manifest.json").write_bytes(Manifest(files, manifest.facts).encode())
    found = audited(place, "--all", "exp1", code=1)
    assert found["differences"][0].startswith("the state after step 6 differs: ")
    assert "weight" in found["differences"][0] or "bias" in found["differences"][0]


def test_other_conditions_are_no_pass(place: Path) -> None:
    def forge(body: dict[str, Any]) -> dict[str, Any]:
        if "conditions" in body:
            body["conditions"] = {**body["conditions"], "torch": "2.0.1"}
        return {**body, "loss": [0.5]} if body.get("step") == 2 else body

    rewritten(place, forge)
    found = audited(place, "--all", "exp1", code=125)
    assert any(text.startswith("torch 2.0.1 in the record") for text in found["conditions"])


def test_a_step_that_came_again_otherwise_ends_the_record(tmp_path: Path) -> None:
    # With snapshots off, the ranks begin anew, and step 6 is made with another decay.
    place = made(tmp_path, "-n", "2", "--snapshots", "off", KILLS="", CHANGES="1")
    assert read_record(place / RECORD).differs is None
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(tmp_path / "data.json", other)
    ended = run_script(
        other, SCRIPT.replace("(5, 0, 0)", "(9, 0, 0)"), "--record", "--name", "exp1", "-n", "2", "--snapshots", "off",
        args=["0.01"], env={"KILLS": "1", "CHANGES": "1"},
    )  # fmt: skip
    assert "step 7 came again otherwise than the first time" in ended.err
    found = audited(other, "exp1", code=1)
    assert found["record"] == "step 7 came again otherwise in the run itself"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "There is no run and no record nowhere."),
        (("--steps", "30:40", "exp1"), "names steps that are not in the record, which has 1 to 12."),
        (("--steps", "4:2", "exp1"), "--steps 4:2 names no steps."),
        (("--all", "--no-replay", "exp1"), "--all and --no-replay contradict each other."),
        (("-n", "9", "exp1"), "-n 9 is more than the run's 4 lanes."),
        (("exp1", "gone.py"), "There is no script gone.py."),
    ],
)
def test_bad_input_is_a_sentence(recorded: Path, words: tuple[str, ...], said: str) -> None:
    assert said in audited(recorded, *words, code=2)["said"]


def test_hostile_and_half_records_are_sentences(place: Path) -> None:
    path = place / RECORD
    text = path.read_bytes()
    path.write_bytes(text[:-10])
    assert audited(place, "--no-replay", "exp1", code=0)["verdict"] == "match"
    for content, said in (
        (b'{"record":2,"samebits":"9"}\n', "of format 2"),
        (b"", "has no line of a record"),
        (b"x" * (5 << 20), "a line of more than 4 MiB"),
        (b'{"record":1}\n{"step":1,"open":"/etc/passwd"}\n', "not a line of a record"),
    ):
        path.write_bytes(content)
        assert said in audited(place, "exp1", code=2)["said"]
    path.unlink()
    os.mkfifo(path)
    assert "no record" in audited(place, "exp1", code=2)["said"]
    shutil.copytree(place, place / "foreign", ignore=lambda *_: {"samebits-runs"})
    (place / "foreign" / "record.jsonl").write_bytes(text)
    assert "Name the script" in audited(place, "foreign", code=2)["said"]
    assert audited(place, "foreign", *WORDS, code=0)["end"]
