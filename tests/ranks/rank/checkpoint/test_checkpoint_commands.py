"""`samebits checkpoint`: on states that real runs saved, whole, damaged, hostile, and on what is no state at all."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.cli.main import main
from samebits.launcher.states.description import examine, summary_of
from samebits.launcher.states.places import states_at
from samebits.protocol.state_files.manifest import NAME, UNHASHED, _checksum
from samebits.testing.ranks import Started, run_ranks
from tests.architecture.test_house import BLOCKER

pytestmark = pytest.mark.ranks


def train(place, name):
    """Two epochs of four steps, with a state after every other step."""
    os.chdir(place)
    run = samebits.init(seed=1, lanes=4, threads=1, name=name, save_every="2steps", keep=9)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    data = TensorDataset(torch.randn(90, 8), torch.randint(0, 3, (90,)))
    loader = DataLoader(data, batch_size=24, shuffle=True)
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
    for _ in run.epochs(2):
        for step in run.steps(loader):
            for inputs, labels in step:
                run.backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        scheduler.step()


class Counting(nn.Linear):
    """A model whose `state_dict` has more than tensors."""

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        self.calls = state["calls"]


def save_two_models(place):
    """A state where a script wants it, of two models, with a value and an object of its own."""
    run = samebits.init(seed=1, lanes=1, threads=1)
    model, other = nn.Linear(8, 16), Counting(2, 2)
    run.prepare(model, other, torch.optim.SGD(model.parameters(), lr=0.01))
    run.save_state(f"{place}/both", best=0.5, average=nn.Linear(1, 1))


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """A folder with the runs `two` (on 2 ranks) and `one` (on 1 rank), and the state `both` of two models."""
    folder = tmp_path_factory.mktemp("states")
    run_ranks(train, Started(2), str(folder), "two")
    run_ranks(train, Started(1), str(folder), "one")
    run_ranks(save_two_models, Started(1), str(folder))
    return folder


@pytest.fixture
def place(real, tmp_path, monkeypatch) -> Path:
    """A copy that a test may damage; the working folder."""
    shutil.copytree(real, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SAMEBITS_RUNS", raising=False)
    return tmp_path


@pytest.fixture
def checkpoint(monkeypatch, capsys):
    """Call the command; returns its exit code, standard output and standard error."""

    def call(*words: object):
        monkeypatch.setattr(sys, "argv", ["samebits", "checkpoint", *map(str, words)])
        with pytest.raises(SystemExit) as ending:
            main()
        told = capsys.readouterr()
        return ending.value.code or 0, told.out, told.err

    return call


STATES = Path("samebits-runs/two/states")
INSIDE, LAST = STATES / "step-00000002", STATES / "step-00000008"


def reseal(state: Path, change) -> None:
    """Change the manifest, or `state.json` with it, and give it the right checksums."""
    manifest = json.loads((state / NAME).read_text())
    manifest.pop("sha256_of_the_rest")
    change(manifest)
    for name in [name for name in manifest["files"] if (state / name).is_file()]:
        text = (state / name).read_bytes()
        manifest["files"][name] |= {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    (state / NAME).write_text(json.dumps({**manifest, "sha256_of_the_rest": _checksum(manifest)}))


def test_ls_lists_a_run_a_folder_a_state_or_every_run_in_a_table_that_lines_up(place, checkpoint):
    code, out, _ = checkpoint("ls", "two")
    rows = out.splitlines()
    assert (code, rows[0].split()) == (0, ["state", "step", "epoch", "saved", "size", "hash", "files"])
    assert [row.split()[:4] for row in rows[1:5]] == [
        ["step-00000002", "2", "in", "1"], ["step-00000004", "4", "after", "1"],
        ["step-00000006", "6", "in", "2"], ["step-00000008", "8", "after", "2"],
    ]  # fmt: skip
    assert {row.index("complete") for row in rows[1:5]} == {rows[0].index("files")}
    assert not any(row.endswith(" ") for row in rows)
    as_run = json.loads(checkpoint("ls", "--json", "two")[1])
    for where in (STATES, STATES.parent, STATES.absolute()):
        same = json.loads(checkpoint("ls", "--json", where)[1])
        assert [one | {"path": ""} for one in same] == [one | {"path": ""} for one in as_run]
    assert json.loads(checkpoint("ls", "--json", LAST)[1]) == as_run[-1:]
    assert [one["run"] for one in json.loads(checkpoint("ls", "--json", "both")[1])] == [""]
    everything = json.loads(checkpoint("ls", "--json")[1])
    assert {one["run"] for one in everything} == {"one", "two"}
    hashes = {name: [one["sha256"] for one in everything if one["run"] == name] for name in ("one", "two")}
    assert hashes["one"] == hashes["two"], "the same content, whatever ranks wrote it"
    (LAST / "model.safetensors").unlink()
    code, out, _ = checkpoint("ls", "two")
    assert (code, "damaged" in out, "model.safetensors cannot be read" in out) == (0, True, True)


def test_show_says_where_the_run_was_who_wrote_it_and_what_is_in_it(place, checkpoint):
    code, out, _ = checkpoint("show", INSIDE)
    assert code == 0
    for text in (
        "loader 1, steps 2, samples 48, of samples 90, order ",
        "strategy ddp, ranks 2, lanes 4, threads 1, seed 1",
        "torch, numpy, python",
        f"torch {torch.__version__}",
    ):
        assert text in out
    manifest = json.loads((INSIDE / NAME).read_text())
    told = json.loads(checkpoint("show", "--json", INSIDE)[1])
    assert {one["name"]: one["sha256"] for one in told["files"]} == {
        name: file["sha256"] for name, file in manifest["files"].items()
    }
    weights = load_file(INSIDE / "model.safetensors")
    files = {one["name"]: one for one in told["files"]}
    model = files["model.safetensors"]
    assert (model["tensors"], model["elements"]) == (len(weights), sum(tensor.numel() for tensor in weights.values()))
    assert (told["optimizers"][0]["kind"], told["optimizers"][0]["groups"]) == (
        "AdamW",
        [{"parameters": 6, "lr": 0.01}],
    )
    assert (told["schedulers"], told["counters"]["step"]) == ([["scheduler", "StepLR"]], 2)
    assert (told["inside"]["samples"], files["gradients.safetensors"]["tensors"]) == (48, 6)
    assert json.loads(checkpoint("show", "--json", "two")[1])["path"] == str(LAST), "the newest"
    both = json.loads(checkpoint("show", "--json", "both")[1])
    assert (both["named"], both["inside"]) == ([["best", "value"], ["average", "object"]], None)


def test_verify_finds_a_bit_that_flips_and_names_the_file(place, checkpoint):
    code, out, _ = checkpoint("verify", "two", "one", "both")
    assert (code, out.count("whole"), out.count("damaged")) == (0, 9, 0)
    for state in (INSIDE, LAST):
        for path in sorted(state.iterdir()):
            text = bytearray(path.read_bytes())
            text[len(text) // 2] ^= 1
            whole = path.read_bytes()
            path.write_bytes(text)
            code, out, err = checkpoint("verify", state)
            assert (code, path.name in out, err) == (1, True, ""), path
            path.write_bytes(whole)
    (LAST / "model.safetensors").write_bytes((LAST / "model.safetensors").read_bytes()[:-4])
    told = json.loads(checkpoint("verify", "--json", "two")[1])
    assert [one["whole"] for one in told] == [True, True, True, False]
    assert [one["file"] for one in told[-1]["damages"]] == ["model.safetensors"]
    (LAST / NAME).unlink()
    assert checkpoint("verify", "two")[0] == 1
    LAST.rename(LAST.with_name(f"damaged-{LAST.name}"))
    assert checkpoint("verify", "two")[0] == 0, "what a resumed run has put aside is looked at where somebody names it"
    assert checkpoint("verify", LAST.with_name(f"damaged-{LAST.name}"))[0] == 1
    (INSIDE / "notes.txt").write_text("mine")
    code, out, _ = checkpoint("verify", INSIDE)
    assert (code, "holds other files too (notes.txt)" in out) == (0, True)


def test_diff_compares_bits_and_states_of_one_and_two_ranks_have_the_same(place, checkpoint):
    code, out, err = checkpoint("diff", "one", "two")
    assert (code, out.splitlines()[-1].startswith("same bits: "), err) == (0, True, "")
    assert "ranks" in out, "who wrote them is said"
    told = json.loads(checkpoint("diff", "--json", "one", "two")[1])
    assert (told["same"], told["tensors"], told["values"]) == (True, [], [])
    assert {one["path"]: (one["left"], one["right"]) for one in told["written"]} == {
        "ranks": ("1", "2"), "strategy": ('"single"', '"ddp"'),
    }  # fmt: skip

    code, out, _ = checkpoint("diff", "--json", INSIDE, LAST)
    told = json.loads(out)
    assert (code, told["same"]) == (1, False)
    one, two = (load_file(state / "model.safetensors") for state in (INSIDE, LAST))
    found = {row["name"]: row for row in told["tensors"] if row["file"] == "model"}
    assert set(found) == {name for name in one if not torch.equal(one[name], two[name])}
    for name, row in found.items():
        assert row["num_differing"] == int((one[name] != two[name]).sum())
        assert row["largest"] == float((one[name].double() - two[name].double()).abs().max())
    values = {value["path"]: (value["left"], value["right"]) for value in told["values"]}
    assert values["the run.step"] == ("2", "8")
    assert values["optimizer.groups[0].options.lr"] == ("0.01", "0.0001")
    code, out, _ = checkpoint("diff", "two", "both")
    assert (code, "model1" in out) == (1, True)


def test_diff_reads_states_that_have_no_hashes(place, checkpoint):
    """Snapshots in memory; they all name the same word in the place of a hash."""
    for state in (INSIDE, LAST):
        manifest = json.loads((state / NAME).read_text())
        manifest.pop("sha256_of_the_rest")
        for file in manifest["files"].values():
            file["sha256"] = UNHASHED
        (state / NAME).write_text(json.dumps({**manifest, "sha256_of_the_rest": _checksum(manifest)}))
    code, out, _ = checkpoint("diff", "--json", INSIDE, LAST)
    assert (code, "model" in {one["file"] for one in json.loads(out)["tensors"]}) == (1, True)


def test_export_writes_weights_that_torch_and_safetensors_read(place, checkpoint):
    assert checkpoint("export", "two", "net.safetensors")[0] == 0
    weights = load_file("net.safetensors")
    for name in ("net.pt", "net.pth", "net.bin"):
        assert checkpoint("export", LAST, name)[0] == 0
        loaded = torch.load(name, weights_only=True)
        assert set(loaded) == set(weights)
        assert all(torch.equal(loaded[one], weights[one]) for one in weights)
        assert sum(value.untyped_storage().nbytes() for value in loaded.values()) < 2000, "each has its own memory"
    before = Path("net.pt").read_bytes()
    code, _, err = checkpoint("export", INSIDE, "net.pt")
    assert (code, "net.pt already exists" in err, Path("net.pt").read_bytes() == before) == (2, True, True)
    assert checkpoint("export", INSIDE, "net.pt", "--force")[0] == 0
    assert not torch.equal(torch.load("net.pt")["0.weight"], weights["0.weight"])
    code, _, err = checkpoint("export", "both", "other.pt")
    assert (code, "Add --model model1 or --model model2." in err) == (2, True)
    assert json.loads(checkpoint("export", "both", "other.pt", "--model", "model2", "--json")[1])["tensors"] == 2
    model = Counting(2, 2)
    model.load_state_dict(torch.load("other.pt", weights_only=True))
    assert model.calls == 3
    code, _, err = checkpoint("export", "both", "other.safetensors", "--model", "model2")
    assert (code, err) == (0, "note: not in a safetensors file: _extra_state\n")
    assert not list(Path().glob(".*"))


def test_an_export_that_cannot_be_written_leaves_what_was_there(place, checkpoint, monkeypatch):
    Path("net.pt").write_text("mine")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    code, _, err = checkpoint("export", "two", "net.pt", "--force")
    assert (code, err) == (1, "error: net.pt could not be written: No space left on device.\n")
    assert (Path("net.pt").read_text(), list(Path().glob(".net*"))) == ("mine", [])


@pytest.mark.parametrize("command", ["ls", "show", "verify", "diff", "export"])
def test_what_is_no_state_is_one_sentence_with_a_fix(place, checkpoint, command):
    Path("dcp").mkdir()
    Path("dcp/.metadata").touch()
    Path("web").mkdir()
    Path("web/manifest.json").write_text('{"name": "an application"}')
    torch.save({}, "net.pt")
    os.mkfifo("pipe")
    Path("nowhere").symlink_to("nothing")
    said = {
        "dcp": "was written by torch.distributed.checkpoint",
        "web": "that samebits did not write",
        "net.pt": "is a file, not a state",
        "pipe": "is a FIFO, not a state",
        "nowhere": "There is no run and no state nowhere",
        "nix": "There is no run and no state nix",
        "x\x1b[2J": "no state x\\x1b[2J",
        str(LAST / "model.safetensors"): "is a file, not a state",
        "\0": "There is no run and no state",
    }
    rest = {"diff": ["two"], "export": ["out.pt"]}.get(command, [])
    for word, problem in said.items():
        code, out, err = checkpoint(command, word, *rest)
        lines = err.splitlines()
        assert (code, out, [line[:6] for line in lines]) == (2, "", ["error:", "help: "]), err
        assert problem in lines[0]
    assert not Path("out.pt").exists()


@pytest.mark.parametrize("command", ["show", "diff", "export"])
def test_a_hostile_state_is_refused_by_the_checks_of_the_loader(place, checkpoint, command):
    def copy(name: str) -> Path:
        return Path(shutil.copytree(INSIDE, name))

    reseal(copy("newer"), lambda manifest: manifest.update(version=99))
    reseal(copy("outside"), lambda m: m["files"].update({"../x": {"size": 1, "sha256": "", "tensors": []}}))
    reseal(copy("less"), lambda manifest: manifest["files"].pop("state.json"))
    for name, make in (("fifo", os.mkfifo), ("link", lambda path: path.symlink_to("/etc/passwd"))):
        path = copy(name) / "model.safetensors"
        path.unlink()
        make(path)
    (copy("broken") / NAME).write_text('{"format": "samebits-state"}')
    said = {
        "newer": "was written by a newer samebits", "outside": "which samebits does not write",
        "less": "does not name state.json", "fifo": "it is a FIFO, not a regular file",
        "link": "it is a link, not a regular file", "broken": "cannot be trusted",
    }  # fmt: skip
    rest = {"diff": ["two"], "export": ["out.pt"]}.get(command, [])
    for name, problem in said.items():
        code, out, err = checkpoint(command, name, *rest)
        assert (code, out, problem in err, len(err.splitlines())) == (2, "", True, 2), err
        assert checkpoint("verify", name)[0] == (2 if name == "newer" else 1)
    told = json.loads(checkpoint("ls", "--json", ".")[1])
    assert {Path(one["path"]).name: one["files"] for one in told} == {
        **dict.fromkeys(said, "damaged"), "newer": "newer", "less": "complete", "both": "complete",
    }  # fmt: skip


def test_documents_that_were_changed_and_sealed_again_are_refused(place, checkpoint):
    text = json.loads((INSIDE / "state.json").read_text())
    for number, (path, value) in enumerate(
        [(("the run", "step"), "x\x1b[2J"), (("the run", "inside"), {"loader": 7, "order": "", "done": 1, "loop": 1}),
         (("optimizer", "groups"), [1]), (("the run",), []), (("random numbers",), 3)]
    ):  # fmt: skip
        state = Path(shutil.copytree(INSIDE, f"changed{number}"))
        documents = json.loads(json.dumps(text))
        inner = documents["documents"]
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (state / "state.json").write_text(json.dumps(documents))
        reseal(state, lambda _: None)
        for words in (["show", state], ["export", state, "out.pt"], ["diff", state, "two"], ["diff", "two", state]):
            code, out, err = checkpoint(*words)
            assert (code, out, len(err.splitlines()), "\x1b" in err) == (2, "", 2, False), err
        assert not Path("out.pt").exists()
        assert checkpoint("verify", state)[0] == 1


def test_a_run_that_has_not_saved_yet_has_no_states(place, checkpoint):
    begun = Path("samebits-runs/three/20260101-000000-train")
    begun.mkdir(parents=True)
    (begun / "plan.json").write_text("{}")
    assert checkpoint("ls", "three") == (0, "No states in three.\n", "")
    code, _, err = checkpoint("show", "three")
    assert (code, "three has no states yet" in err) == (2, True)
    shutil.rmtree("samebits-runs")
    assert checkpoint("ls") == (0, "No states in samebits-runs.\n", "")
    assert checkpoint("ls", "--json") == (0, "[]\n", "")


def test_a_state_that_a_run_removes_meanwhile_is_left_out(place):
    found = states_at("two", Path("samebits-runs"))
    shutil.rmtree(INSIDE)
    assert [summary_of(one) is None for one in found] == [True, False, False, False]
    assert [examine(one) is None for one in found] == [True, False, False, False]


def test_a_state_that_a_killed_program_left_between_two_renames_is_found(place, checkpoint):
    Path("both").rename(".both.previous")
    for command in ("ls", "show", "verify"):
        code, out, err = checkpoint(command, "both")
        assert (code, ".both.previous" in out, err.count("both is missing")) == (0, True, 1)


def test_ls_show_and_verify_work_where_there_is_no_torch_and_the_others_say_so(place):
    blocker = BLOCKER.replace('"numpy", "safetensors"', "")
    for words, code in ((["ls"], 0), (["show", "two"], 0), (["verify", "two"], 0), (["diff", "one", "two"], 2)):
        program = (
            f"{blocker}\nsys.argv = ['samebits', 'checkpoint', *{words!r}]\nfrom samebits.cli.main import main\nmain()"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
    assert "needs torch" in done.stderr
