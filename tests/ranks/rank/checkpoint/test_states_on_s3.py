"""States on a real S3 server: a run is killed in the middle of an upload and goes on elsewhere with the same bits."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.s3.store import store, why_not
from tests.support.launching import start, until, write_script

pytestmark = [
    pytest.mark.ranks, pytest.mark.thorough, pytest.mark.compiles, pytest.mark.skipif(bool(why_not()), reason=why_not()),
]  # fmt: skip

SCRIPT = """
    import os, sys, torch, torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset
    import samebits

    run = samebits.init(seed=1, lanes=6, threads=1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(100, 8), torch.randint(0, 3, (100,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=24, shuffle=True))
    own = os.environ.get("OWN")
    if own:
        run.load_state(own, missing_ok=True)
    for epoch in run.epochs(3):
        for step in run.steps(loader):
            for inputs, labels in step:
                run.backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
        if own:
            run.save_state(own)
            if os.environ.get("STOP") == str(epoch):
                sys.exit(3)
    run.save_weights(model, sys.argv[1])
    if own:
        run.save_weights(model, f"{own}-net.safetensors")
        other = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        for url in (own, f"{own}-net.safetensors"):
            samebits.load_weights(other, url)
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
"""
NAMED = ("--name", "exp1", "--save-every", "2steps", "--keep", "2", "--states")
RUNS = "s3://bucket/runs"


@pytest.fixture
def s3():
    with store() as found:
        yield found


def begin(folder, ranks, *options, **variables):
    folder.mkdir(exist_ok=True)
    return start(folder, "-n", str(ranks), *options, write_script(folder, SCRIPT), "net.safetensors", env=variables)


def digest(folder):
    return hashlib.sha256((folder / "net.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    assert begin(folder, 1).finish().code == 0
    return digest(folder)


def steps_of(s3):
    return sorted({key.split("/")[2] for key in s3.keys("runs/exp1/") if key.endswith("manifest.json")})


def test_a_run_killed_in_the_middle_of_an_upload_goes_on_on_another_machine(tmp_path, s3, undisturbed):
    s3.shut_for = "step-00000006/manifest.json"
    running = begin(tmp_path / "here", 2, *NAMED, RUNS, **s3.variables)
    assert s3.waits.wait(60)
    running.process.kill()
    until(lambda: not running.processes(), "the end of all processes")
    running.finish()
    assert steps_of(s3) == ["step-00000002", "step-00000004"]
    assert s3.keys("runs/exp1/step-00000006/"), "files without a manifest"
    s3.shut_for = ""
    ended = begin(tmp_path / "there", 3, *NAMED, RUNS, **s3.variables).finish()
    assert (ended.code, digest(tmp_path / "there")) == (0, undisturbed), ended.err
    assert "resumes in epoch 1, after step 4" in ended.err + ended.out
    assert steps_of(s3) == ["step-00000012", "step-00000014"]
    assert len(s3.keys()) == 12, "no file of another state is left"

    (tmp_path / "here" / "net.safetensors").unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "here" / "samebits-runs")
    again = begin(tmp_path / "here", 1, *NAMED, RUNS, **s3.variables).finish()
    assert (again.code, digest(tmp_path / "here")) == (0, undisturbed), again.err

    def checkpoint(*words):
        command = [sys.executable, "-m", "samebits", "checkpoint", *words]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **s3.variables}, capture_output=True, text=True, timeout=60
        )

    rows = json.loads(checkpoint("ls", "--json", RUNS).stdout)
    assert [(row["step"], row["files"], row["run"]) for row in rows] == [
        (12, "complete", "exp1"),
        (14, "complete", "exp1"),
    ]
    assert checkpoint("verify", f"{RUNS}/exp1").returncode == 0
    assert f"{RUNS}/exp1/step-00000014" in checkpoint("show", f"{RUNS}/exp1").stdout
    assert checkpoint("diff", f"{RUNS}/exp1", "there/samebits-runs/exp1").returncode == 0
    assert checkpoint("export", f"{RUNS}/exp1", "out.safetensors").returncode == 0
    assert (tmp_path / "out.safetensors").exists()


def test_states_that_a_script_saves_replace_each_other(tmp_path, s3, undisturbed):
    own = "s3://bucket/mine/exp2"
    stopped = begin(tmp_path / "here", 2, OWN=own, STOP="1", **s3.variables).finish()
    assert stopped.code == 3, stopped.err
    assert len(s3.keys("mine/")) == 5
    ended = begin(tmp_path / "there", 3, OWN=own, **s3.variables).finish()
    assert (ended.code, digest(tmp_path / "there")) == (0, undisturbed), ended.err
    assert len(s3.keys("mine/")) == 6, "the last state and the weights"


def test_what_is_wrong_with_a_store_is_one_sentence_and_training_goes_on(tmp_path, s3, undisturbed):
    ended = begin(tmp_path / "a", 2, *NAMED, "s3://nowhere/runs", **s3.variables).finish()
    assert (ended.code, digest(tmp_path / "a")) == (0, undisturbed)
    said = ended.err + ended.out
    assert "step-00000002 is on the disk, but could not be copied: s3://nowhere/runs/exp1/step" in said
    assert "Check that the bucket or the folder exists. The run continues." in said
    assert "Traceback" not in said

    without = {name: value for name, value in s3.variables.items() if "KEY" not in name}
    ended = begin(tmp_path / "b", 2, *NAMED, RUNS, **without, HOME=str(tmp_path)).finish()
    assert ended.code == 2, ended.err
    assert f"{RUNS}/exp1 cannot be used: Unable to locate credentials (NoCredentialsError)." in ended.err
    assert "Check the credentials that its driver uses" in ended.err


def test_a_network_that_fails_in_the_middle_is_said_and_the_next_state_is_copied(tmp_path, s3, undisturbed):
    s3.shut_for = "step-00000006/manifest.json"
    s3.fails = True
    ended = begin(tmp_path / "here", 2, *NAMED, RUNS, **s3.variables).finish()
    assert (ended.code, digest(tmp_path / "here")) == (0, undisturbed), ended.err
    said = ended.err + ended.out
    assert "step-00000006 is on the disk, but could not be copied: s3://bucket/runs/exp1/step" in said
    assert "step-00000008 is" not in said
    assert steps_of(s3) == ["step-00000012", "step-00000014"]
