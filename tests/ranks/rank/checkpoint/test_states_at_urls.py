"""States at URLs: a run goes on from one with the bits of a run that never stopped, on another machine too."""

import json
import logging
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.cli.main import main
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.notices import Heard
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
EPOCHS, STEPS = 2, 5


def prepared(run):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.2), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return run.prepare(model, optimizer, DataLoader(scenarios.digits(150), batch_size=32, shuffle=True))


def one_step(run, model, optimizer, step):
    for images, labels in step:
        run.backward(F.cross_entropy(model(images), labels))
    optimizer.step()
    optimizer.zero_grad()


def train(place, stop_after=None, states=None, save_every="1steps"):
    """A run that saves by itself; its bits, the first step that it made, and its notices."""
    Path(place).mkdir(exist_ok=True)
    os.chdir(place)
    heard = Heard()
    logging.getLogger("samebits").addHandler(heard)
    named = {"name": "exp1", "save_every": save_every, "keep": 2, "states": states} if states else {}
    run = samebits.init(seed=3, lanes=6, threads=1, **named)
    model, optimizer, loader = prepared(run)
    first = None
    for _ in run.epochs(EPOCHS):
        for step in run.steps(loader):
            first = first or step.number
            if stop_after is not None and step.number > stop_after:
                return "stopped"
            one_step(run, model, optimizer, step)
    return digest_of(model, optimizer), first, torch.rand(2).tolist(), heard.notices


def save_and_load(url):
    """An epoch, a state that replaces another, and a second run of this process that goes on from it."""
    for start in range(2):
        run = samebits.init(seed=3, lanes=6, threads=1)
        model, optimizer, loader = prepared(run)
        told = run.load_state(url, missing_ok=True)
        assert told == ({"best": 0.5} if start else {})
        run.save_state(url, best=0.25 + start)
        for epoch in run.epochs(EPOCHS):
            for step in run.steps(loader):
                one_step(run, model, optimizer, step)
            run.save_state(url, best=0.5)
            if not start:
                assert epoch == 0
                break
    bits, drawn = digest_of(model, optimizer), torch.rand(2).tolist()
    if url.startswith("file://"):
        run.save_weights(model, f"{url}-weights/net.safetensors")
        for weights in (url, f"{url}-weights/net.safetensors"):
            other = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.2), nn.Linear(32, 10))
            assert samebits.load_weights(other, weights).missing_keys == []
            assert digest_of(other) == digest_of(model)
    samebits.finish()
    return bits, drawn, list(run._run.config.folder.path.glob("samebits-copy-*"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run_ranks(train, Started(1), str(tmp_path_factory.mktemp("straight")))[0]


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_state_that_the_script_saves_to_a_url_is_gone_on_from(tmp_path, undisturbed, scheme):
    url = f"file://{tmp_path}/there/exp1" if scheme == "file" else "memory://bucket/exp1"
    for bits, drawn, left in run_ranks(save_and_load, Started(2), url):
        assert (bits, drawn, left) == (undisturbed[0], undisturbed[2], [])


def states_of(folder):
    return sorted(path.name for path in folder.iterdir())


@promise(
    "save-and-resume",
    "States at URLs: a named run goes on on another machine, from S3 too, whatever call of an upload "
    "failed; only files of ours are removed there; another URL than before is another place",
    also=[
        "test_a_state_that_the_script_saves_to_a_url_is_gone_on_from",
        "test_another_url_than_before_is_another_place_beside_the_disk",
        "test_a_run_killed_in_the_middle_of_an_upload_goes_on_on_another_machine",
        "test_a_failure_at_any_call_leaves_one_of_the_two_and_the_next_save_works",
        "test_a_copy_to_a_url_that_is_killed_or_fails_at_any_call_leaves_the_older_or_the_newer_state",
        "test_a_manifest_of_somebody_else_stays_and_so_do_weights_beside_a_state",
    ],
)
def test_a_named_run_goes_on_on_another_machine_from_its_states_at_a_url(tmp_path, undisturbed):
    """Another machine has no run folder; the first one, which is behind, takes the newer states of the other."""
    here, there, runs = tmp_path / "here", tmp_path / "there", f"file://{tmp_path}/runs"
    assert run_ranks(train, Started(2), str(here), 3, runs) == ["stopped"] * 2
    assert run_ranks(train, Started(3), str(there), 7, runs) == ["stopped"] * 3
    assert states_of(tmp_path / "runs" / "exp1") == ["step-00000006", "step-00000007"]
    assert states_of(there / "samebits-runs" / "exp1" / "states") == ["step-00000006", "step-00000007"]
    for bits, first, drawn, _ in run_ranks(train, Started(1), str(here), None, runs):
        assert (bits, first, drawn) == (undisturbed[0], 8, undisturbed[2])
    assert states_of(tmp_path / "runs" / "exp1") == ["step-00000009", "step-00000010"]


@pytest.mark.thorough
def test_where_the_last_copy_failed_the_disk_is_ahead_of_the_url(tmp_path, undisturbed):
    here, runs = tmp_path / "here", f"file://{tmp_path}/runs"
    assert run_ranks(train, Started(2), str(here), 3, runs) == ["stopped"] * 2
    shutil.rmtree(tmp_path / "runs" / "exp1" / "step-00000003")
    [(bits, first, _, _)] = run_ranks(train, Started(1), str(here), None, runs)
    assert (bits, first) == (undisturbed[0], 4)


@pytest.mark.thorough
def test_another_url_than_before_is_another_place_beside_the_disk(tmp_path, undisturbed):
    """The newest of the disk and the URL that is named now counts; the one of before is neither asked nor changed."""
    here, before, now = str(tmp_path / "here"), f"file://{tmp_path}/before", f"file://{tmp_path}/now"
    assert run_ranks(train, Started(2), here, 3, before) == ["stopped"] * 2
    [stopped] = run_ranks(train, Started(1), here, 6, now)
    assert stopped == "stopped"
    assert states_of(tmp_path / "before" / "exp1") == ["step-00000002", "step-00000003"]
    assert states_of(tmp_path / "now" / "exp1") == ["step-00000005", "step-00000006"]
    for url, expected in ((before, 4), (now, 7)):  # on machines that have nothing on the disk
        place = tmp_path / f"there{expected}"
        [(bits, first, drawn, _)] = run_ranks(train, Started(1), str(place), None, url)
        assert (bits, first, drawn) == (undisturbed[0], expected, undisturbed[2])


def test_a_damaged_state_at_the_url_is_left_out_and_half_of_one_too(tmp_path, undisturbed):
    runs = f"file://{tmp_path}/runs"
    assert run_ranks(train, Started(2), str(tmp_path / "here"), 4, runs) == ["stopped"] * 2
    [model] = (tmp_path / "runs" / "exp1" / "step-00000004").glob("model-*")
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    half = tmp_path / "runs" / "exp1" / "step-00000005"
    half.mkdir()
    shutil.copy(model, half)
    [(bits, first, drawn, notices)] = run_ranks(train, Started(1), str(tmp_path / "there"), None, runs)
    assert (bits, first, drawn) == (undisturbed[0], 4, undisturbed[2])
    assert any(f"{runs}/exp1/step-00000004/model.safetensors is damaged" in one for one in notices)
    assert any(f"the newest state is {runs}/exp1/step-00000003, which is copied to" in one for one in notices)


@promise(
    "save-and-resume",
    "A URL that fails, or cannot be, is one sentence, and training goes on; damaged copies are left out, "
    "hostile ones refused; no message has a credential",
    also=[
        "test_a_store_that_does_not_answer_is_one_sentence",
        "test_a_damaged_state_at_the_url_is_left_out_and_half_of_one_too",
        "test_a_hostile_manifest_is_refused_and_nothing_is_written_outside_of_the_folder",
        "test_no_message_has_a_credential",
        "test_what_can_be_known_of_a_url_is_said_before_anything_starts",
    ],
)
def test_where_the_url_fails_the_run_says_so_goes_on_and_keeps_the_states_of_the_disk(tmp_path, undisturbed):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "exp1").write_text("a file is in the way")
    runs = f"file://{tmp_path}/runs"
    results = run_ranks(train, Started(2), str(tmp_path / "here"), None, runs)
    assert [one[0] for one in results] == [undisturbed[0]] * 2
    said = [one for one in results[0][3] if "could not be copied" in one]
    assert len(said) == EPOCHS * STEPS
    assert said[0].startswith(
        f"step-00000001 is on the disk, but could not be copied: {runs}/exp1/step-00000001 cannot"
    )
    assert said[0].endswith("The run continues.")
    assert states_of(tmp_path / "here" / "samebits-runs" / "exp1" / "states") == ["step-00000009", "step-00000010"]


@promise(
    "save-and-resume",
    "`samebits checkpoint` shows, verifies, compares and exports states, at URLs too; what is no state is one sentence",
    also=[
        "test_diff_compares_bits_and_states_of_one_and_two_ranks_have_the_same",
        "test_verify_finds_a_bit_that_flips_and_names_the_file",
        "test_export_writes_weights_that_torch_and_safetensors_read",
        "test_an_export_that_cannot_be_written_leaves_what_was_there",
        "test_what_is_no_state_is_one_sentence_with_a_fix",
        "test_a_hostile_state_is_refused_by_the_checks_of_the_loader",
    ],
)
@pytest.mark.thorough
def test_checkpoint_commands_take_urls(tmp_path, monkeypatch, capsys):
    runs = f"file://{tmp_path}/runs"
    run_ranks(train, Started(2), str(tmp_path / "here"), None, runs, "epoch")
    monkeypatch.chdir(tmp_path)

    def checkpoint(*words):
        monkeypatch.setattr(sys, "argv", ["samebits", "checkpoint", *words])
        with pytest.raises(SystemExit) as ending:
            main()
        told = capsys.readouterr()
        assert "samebits-copy-" not in told.out + told.err
        return ending.value.code or 0, told.out, told.err

    code, out, _ = checkpoint("ls", f"{runs}/exp1")
    assert (code, [row.split()[1] for row in out.splitlines()[1:3]]) == (0, ["5", "10"])
    rows = [json.loads(checkpoint("ls", "--json", word)[1]) for word in (f"{runs}/exp1", runs)]
    assert rows[0] == rows[1]
    local = json.loads(checkpoint("ls", "--json", "here/samebits-runs/exp1")[1])
    assert [one | {"path": ""} for one in rows[0]] == [one | {"path": ""} for one in local]
    newest = f"{runs}/exp1/step-00000010"
    assert rows[0][1]["path"] == newest
    assert newest in checkpoint("show", f"{runs}/exp1")[1]
    assert checkpoint("diff", f"{runs}/exp1", "here/samebits-runs/exp1")[0] == 0
    assert checkpoint("export", newest, "net.safetensors")[0] == 0
    assert Path("net.safetensors").stat().st_size > 1000
    assert checkpoint("verify", f"{runs}/exp1")[0] == 0
    [model] = (tmp_path / "runs" / "exp1" / "step-00000010").glob("model-*")
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    code, out, _ = checkpoint("verify", f"{runs}/exp1")
    assert (code, f"{newest}/model.safetensors" in out or "model.safetensors" in out) == (1, True)
    code, _, err = checkpoint("show", f"{runs}/exp2")
    assert (code, f"There is no state at {runs}/exp2." in err) == (2, True)
    code, _, err = checkpoint("ls", "tos://bucket/runs")
    assert (code, "pip install tosfs" in err) == (2, True)
