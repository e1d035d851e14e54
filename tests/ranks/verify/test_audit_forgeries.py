"""`samebits audit` of records that claim another run than was made, and of folders that came from elsewhere."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samebits.protocol.record.reading import read_record
from samebits.protocol.state_files.manifest import UNHASHED, Manifest, SavedFile
from samebits.verify.replay.past_run import copy_state
from tests.ranks.verify.test_audit import RECORD, WORDS, audited, place, recorded, rewritten
from tests.support.launching import run_script

__all__ = ["place", "recorded"]
pytestmark = pytest.mark.ranks

WITHOUT_BACKWARD = """
    import torch, samebits

    run = samebits.init(seed=0, lanes=2, threads=1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.randn(12, 2), batch_size=2, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for epoch in run.epochs(2):
        for step in run.steps(loader):
            if step.number % 4 == 1:
                continue
            step.backward(lambda batch: model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_run_that_goes_on_is_none_that_ended_earlier_with_its_bits(place: Path) -> None:
    def forge(body: dict[str, Any]) -> dict[str, Any] | None:
        return None if body.get("step", 0) > 8 else {**body, "end": 8} if "end" in body else body

    rewritten(place, forge)
    found = audited(place, "--all", "exp1", *WORDS, code=1)
    assert found["differences"] == ["the run ends behind step 8 in the record, and goes on to step 12 here"]


def test_a_record_that_begins_late_says_so(place: Path) -> None:
    def forge(body: dict[str, Any]) -> dict[str, Any] | None:
        return None if 0 < body.get("step", 0) <= 6 else {**body, "after": 6} if "conditions" in body else body

    rewritten(place, forge)
    found = audited(place, "--all", "exp1", *WORDS, code=0)
    assert (found["begins_after"], found["gaps"]) == (6, [])


def test_a_state_that_nobody_can_read_differs(place: Path) -> None:
    state = place / "samebits-runs/exp1/states/step-00000006"
    text = (state / "state.json").read_bytes().replace(b'"num_losses"', b'"num_lossez"')
    (state / "state.json").write_bytes(text)
    manifest = Manifest.decode((state / "manifest.json").read_bytes(), state)
    files = {**manifest.files, "state.json": SavedFile.of(text)}
    (state / "manifest.json").write_bytes(Manifest(files, manifest.facts).encode())
    found = audited(place, "--all", "exp1", *WORDS, code=1)
    assert found["differences"] == ["the state after step 6 differs: state.json"]


def test_a_state_is_copied_without_what_its_manifest_does_not_name(place: Path, tmp_path: Path) -> None:
    state = place / "samebits-runs/exp1/states/step-00000006"
    (tmp_path / "secret").write_text("secret")
    (state / "more").symlink_to(tmp_path / "secret")
    (state / "state.safetensors").rename(tmp_path / "moved")
    (state / "state.safetensors").symlink_to(tmp_path / "moved")
    copy_state(state, tmp_path / "states")
    names = {one.name for one in (tmp_path / "states" / state.name).iterdir()}
    assert "manifest.json" in names
    assert not names & {"more", "state.safetensors"}


def test_missing_steps_are_no_pass_though_no_segment_with_them_is_drawn(place: Path) -> None:
    rewritten(place, lambda body: None if body.get("step") in (10, 11) else body)
    assert audited(place, "--segments", "1", "exp1", *WORDS, code=125)["gaps"] == [[10, 11]]
    assert audited(place, "--steps", "1:3", "exp1", *WORDS, code=0)["gaps"] == []


def test_the_plan_of_a_folder_from_elsewhere_is_not_run(place: Path) -> None:
    run = place / "samebits-runs" / "exp1"
    shutil.copytree(run, place / "published")
    (plan,) = (place / "published").glob("*/plan.json")
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "folder": str(place)}))
    assert "is of no run of yours in samebits-runs" in audited(place, "published", code=2)["said"]
    assert audited(place, "--no-replay", "published", code=0)["verdict"] == "match"


def test_steps_without_a_backward_are_no_gaps(tmp_path: Path) -> None:
    ended = run_script(tmp_path, WITHOUT_BACKWARD, "--record", "--name", "exp1", "-n", "2", "--save-every", "3steps")
    assert ended.code == 0, ended.err
    record = read_record(tmp_path / RECORD)
    assert (record.first, list(record.lines), record.gaps) == (1, [2, 3, 4, 6, 7, 8, 10, 11, 12], [])
    found = audited(tmp_path, "--all", "exp1", code=0)
    assert (found["steps"], found["end"]) == (9, True)


def test_arguments_that_are_no_text_are_recorded_too(tmp_path: Path) -> None:
    ended = run_script(tmp_path, WITHOUT_BACKWARD, "--record", "--name", "exp1", "-n", "1", args=["a\udcff"])
    assert ended.code == 0, ended.err
    assert len(read_record(tmp_path / RECORD).lines) == 9


def test_what_the_record_chooses_is_said(place: Path) -> None:
    """Steps that are passed over are in no argument of the auditor's, and in no link of the chain."""
    rewritten(place, lambda body: {**body, "skipped": [[20, 21]]} if "start" in body else body)
    found = audited(place, "--steps", "1:3", "exp1", *WORDS, code=0)
    assert found["as_the_record_says"] == "the samples of steps 20 to 21 are passed over"


def test_a_run_that_was_resumed_with_other_arguments_is_no_forgery(tmp_path: Path) -> None:
    script = WITHOUT_BACKWARD.replace("lr=0.1", "lr=float(sys.argv[2])").replace("import torch", "import sys, torch")
    script = script.replace("range(2)", "range(int(sys.argv[1]))").replace("epochs(2)", "epochs(int(sys.argv[1]))")
    # What a schedule follows from is an argument too: steps that were made before had another rate.
    script = script.replace("step.backward", "optimizer.param_groups[0]['lr'] = float(sys.argv[2]); step.backward")
    for args in (["1", "0.1"], ["2", "0.2"]):
        options = ("--record", "--name", "exp1", "-n", "1", "--save-every", "2steps")
        assert run_script(tmp_path, script, *options, args=args).code == 0
    found = audited(tmp_path, "--all", "exp1", code=125)
    assert (found["differences"][0][:28], found["program"]) == (
        "the learning rate of step 2 ",
        ["the arguments differ"],
    )
    audited(tmp_path, "--steps", "1:6", "exp1", "script.py", "1", "0.1", code=0)
    audited(tmp_path, "--steps", "7:12", "exp1", code=0)


def test_a_state_without_hashes_is_damaged(place: Path) -> None:
    state = place / "samebits-runs/exp1/states/step-00000006"
    manifest = Manifest.decode((state / "manifest.json").read_bytes(), state)
    files = {name: replace(file, sha256=UNHASHED) for name, file in manifest.files.items()}
    (state / "manifest.json").write_bytes(Manifest(files, manifest.facts).encode())
    found = audited(place, "--no-replay", "exp1", code=1)
    assert found["damaged_states"] == {"6": "the state after step 6 has files without a SHA-256"}
