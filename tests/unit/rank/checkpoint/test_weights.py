"""Anybody's weight file into a model: all of it or nothing, and nothing in a file is executed."""

import gzip
import hashlib
import io
import json
import os
import pickle
import resource
import struct
import tarfile
import zipfile
from argparse import Namespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import samebits
from samebits.errors import EnvironmentFailure
from samebits.protocol.state_files.manifest import NAME, Manifest, SavedFile
from samebits.rank.checkpoint.format.tensor_file import TensorFile
from samebits.testing.digests import digest_of
from tests.support.promises import promise


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))
        self.head = nn.Linear(width, 2)

    def forward(self, inputs):
        return self.head(self.body(inputs))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight


class Ddp(nn.parallel.DataParallel):
    """DataParallel wraps like DDP and needs no process group."""


def compiled(net):
    return torch.compile(net, backend="eager")


def prefixed(prefix, state):
    return {prefix + name: value for name, value in state.items()}


def write(path, value, form):
    if form == "safetensors":
        save_file(value, path)
    else:
        torch.save(value, path, _use_new_zipfile_serialization=form == "new")


@promise(
    "files",
    "`samebits.load_weights` reads safetensors and both formats of `torch.save`, with any prefixes, into "
    "any wrapper; weights of another model are listed and change nothing",
    also=["test_weights_of_another_model_are_listed_and_change_nothing"],
)
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module."])
@pytest.mark.parametrize("form", ["safetensors", "new", "old"])
def test_a_file_is_read_whatever_its_format_and_prefixes(tmp_path, prefix, form):
    source, path = Net(), tmp_path / "weights.pth.tar"
    write(path, prefixed(prefix, source.state_dict()), form)
    for wrap in (lambda net: net, compiled, Ddp, lambda net: Ddp(compiled(net))):
        target = Net()
        loaded = samebits.load_weights(wrap(target), path)
        assert digest_of(target) == digest_of(source)
        assert loaded == type(loaded)(key="", missing_keys=[], unexpected_keys=[], cast=[])


@pytest.mark.parametrize("key", ["state_dict", "checkpoint.model"])
def test_weights_are_found_under_any_key(tmp_path, key):
    source, target = Net(), Net()
    optimizer = torch.optim.Adam(source.parameters())
    source(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    inner = source.state_dict()
    for part in reversed(key.split(".")):
        inner = {part: inner}
    torch.save(
        {"epoch": 3, "best": torch.tensor(0.5), "optimizer": optimizer.state_dict(), **inner}, tmp_path / "w.bin"
    )
    assert samebits.load_weights(target, tmp_path / "w.bin").key == key
    assert digest_of(target) == digest_of(source)


def test_of_several_that_fit_the_usual_name_is_taken_else_the_choice_is_the_users(tmp_path):
    states = [Net().state_dict() for _ in range(3)]
    target = Net()
    torch.save({"model": states[0], "ema": states[1]}, tmp_path / "w.pt")
    assert samebits.load_weights(target, tmp_path / "w.pt").key == "model"
    samebits.load_weights(target, tmp_path / "w.pt", key="ema")
    assert torch.equal(target.head.weight, states[1]["head.weight"])
    with pytest.raises(samebits.UsageError, match=r'no weights under \'last\'. Use one of: key="model", key="ema"'):
        samebits.load_weights(target, tmp_path / "w.pt", key="last")
    torch.save({"student": states[0], "teacher": states[1]}, tmp_path / "w.pt")
    with pytest.raises(samebits.UsageError, match='Say which with one of: key="student", key="teacher"'):
        samebits.load_weights(target, tmp_path / "w.pt")
    other = {"generator": states[0], "discriminator": nn.Linear(2, 1).state_dict()}
    torch.save(other, tmp_path / "w.pt")
    assert samebits.load_weights(target, tmp_path / "w.pt").key == "generator"


def test_weights_of_another_model_are_listed_and_change_nothing(tmp_path):
    target, path = Net(), tmp_path / "w.pt"
    before = digest_of(target)

    def said(state, **options):
        torch.save(state, path)
        with pytest.raises(samebits.UsageError) as caught:
            samebits.load_weights(target, path, **options)
        assert digest_of(target) == before
        return str(caught.value)

    assert "other shape: body.0.weight (5, 3) for (4, 3), body.0.bias (5,) for (4,)" in said(Net(5).state_dict())
    assert "and 2 more" in said(Net(5).state_dict())
    renamed = {name.replace("head", "heads"): value for name, value in Net().state_dict().items()}
    message = said({"model": renamed})
    assert "(under 'model') holds the weights of a different model" in message
    assert "missing: head.weight, head.bias; unexpected: heads.weight, heads.bias" in message
    assert "head.weight may be heads.weight there" in message
    assert "missing: body.0.weight" in said({"other": torch.ones(1)}, strict=False)
    assert "holds no tensors by name" in said([1, 2])
    assert "is not a plain tensor" in said(Net().state_dict() | {"head.bias": torch.ones(2).to_sparse()})


def test_tied_weights_may_stand_once_in_a_file_and_never_twice_with_other_values(tmp_path):
    source, target = Tied(), Tied()
    state = {name: value.clone() for name, value in source.state_dict().items()}
    save_file({name: value for name, value in state.items() if name != "two.weight"}, tmp_path / "w.safetensors")
    samebits.load_weights(target, tmp_path / "w.safetensors")
    assert digest_of(target) == digest_of(source)
    save_file(state | {"two.weight": torch.zeros(3, 3)}, tmp_path / "w.safetensors")
    with pytest.raises(samebits.UsageError, match="which are one tensor in this model"):
        samebits.load_weights(target, tmp_path / "w.safetensors")


def test_other_names_in_the_header_count_where_they_name_a_tensor_and_are_none_themselves(tmp_path):
    told = {"format": "one", "two": "one", "three": "two", "four": "nothing", "five": "five", "one": "six"}
    save_file({"one": torch.ones(3), "six": torch.zeros(2)}, tmp_path / "w.safetensors", metadata=told)
    file = TensorFile(tmp_path / "w.safetensors")
    assert sorted(file.described) == ["one", "six", "two"]
    assert torch.equal(file.get("two"), torch.ones(3))
    assert torch.equal(file.get("one"), torch.ones(3))


def test_dtypes_are_cast_when_the_values_survive(tmp_path):
    source, target = Net().double(), Net()
    torch.save(source.state_dict(), tmp_path / "w.pt")
    loaded = samebits.load_weights(target, tmp_path / "w.pt")
    assert "head.weight" in loaded.cast
    assert "body.1.num_batches_tracked" not in loaded.cast
    assert torch.equal(target.head.weight, source.head.weight.float())
    with torch.no_grad():
        source.head.weight[0, 0] = 1e5
    torch.save(source.state_dict(), tmp_path / "w.pt")
    half = Net().half()
    before = digest_of(half)
    with pytest.raises(samebits.UsageError, match=r"head.weight is float64 .* float16 .* some values are too large"):
        samebits.load_weights(half, tmp_path / "w.pt")
    torch.save(source.state_dict() | {"head.bias": torch.tensor([1, 2])}, tmp_path / "w.pt")
    with pytest.raises(samebits.UsageError, match=r"head.bias is int64 .* not the same kind of dtype"):
        samebits.load_weights(half.float(), tmp_path / "w.pt")
    assert digest_of(half.half()) == before


def test_parameters_on_the_meta_device_are_another_ranks(tmp_path):
    source, target = Net(), Net()
    torch.save(source.state_dict(), tmp_path / "w.pt")
    target.body[0].to("meta")
    samebits.load_weights(target, tmp_path / "w.pt")
    assert torch.equal(target.head.weight, source.head.weight)
    assert target.body[0].weight.is_meta
    with pytest.raises(samebits.UsageError, match="to_empty"):
        samebits.load_weights(Net().to("meta"), tmp_path / "w.pt")


class OwnState(nn.Linear):
    """A module whose state_dict is made by its own code."""

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        if state["calls"] != 3:
            raise ValueError("calls")


def test_a_model_with_its_own_state_is_loaded_by_its_own_code_or_stays_as_it_was(tmp_path):
    source, target = OwnState(2, 2), OwnState(2, 2)
    torch.save(source.state_dict(), tmp_path / "w.pt")
    samebits.load_weights(target, tmp_path / "w.pt")
    assert torch.equal(target.weight, source.weight)
    torch.save({"weight": torch.zeros(2, 2), "bias": torch.zeros(2), "_extra_state": {"calls": 4}}, tmp_path / "w.pt")
    with pytest.raises(samebits.UsageError, match="load_state_dict refused"):
        samebits.load_weights(target, tmp_path / "w.pt")
    assert torch.equal(target.weight, source.weight)


class Evil:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@promise(
    "files",
    "A pickle that would run code, 20 kinds of files that are not weights, flipped bits and what is no "
    "regular file are one sentence, and nothing is executed",
    also=[
        "test_a_file_that_is_none_is_named_without_memory_for_what_it_claims",
        "test_a_bit_that_flips_in_the_weights_of_a_state_is_found",
        "test_what_is_none_is_named",
    ],
)
@pytest.mark.parametrize("form", ["new", "old"])
@pytest.mark.parametrize(("thing", "name"), [(Evil, "posix.mkdir"), (lambda _: Namespace(lr=1), "argparse.Namespace")])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path, form, thing, name):
    write(tmp_path / "w.pt", {"state_dict": Net().state_dict(), "args": thing(tmp_path / "made")}, form)
    with pytest.raises(samebits.UsageError, match=f"holds more than tensors \\(`{name}`\\)") as caught:
        samebits.load_weights(Net(), tmp_path / "w.pt")
    assert "take the tensors out once" in str(caught.value)
    assert not (tmp_path / "made").exists()
    assert "\n" not in str(caught.value)


def tar_bytes():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("weights.pt"))
    return buffer.getvalue()


def archive(records, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, data in records.items():
            file.writestr(f"w/{name}", data)
    return buffer.getvalue()


def saved(value, *, new=True):
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=new)
    return buffer.getvalue()


def lying_header():
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 64


def lying_archive():
    """A pickle that says that its four numbers are 2^30."""
    records = {}
    with zipfile.ZipFile(io.BytesIO(saved({"weight": torch.ones(4)}))) as file:
        for name in file.namelist():
            records[name.partition("/")[2]] = file.read(name)
    records["data.pkl"] = records["data.pkl"].replace(b"K\x04", b"J\x00\x00\x00\x40")
    return archive(records)


def lying_old_file():
    """A pickle from before torch 1.6 that says that its four numbers are 2^38."""
    data = saved({"weight": torch.ones(4)}, new=False)
    return data.replace(b"K\x04N", b"\x8a\x05\x00\x00\x00\x00\x40N")


FILES = {
    "empty": (lambda: b"", "is empty"),
    "html": (lambda: b"\n<!DOCTYPE html><html>404", "is a web page, not a weight file"),
    "lfs": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "git lfs pull"),
    "gzip": (lambda: gzip.compress(b"x"), "compressed with gzip"),
    "tar": (tar_bytes, "is a tar archive"),
    "hdf5": (lambda: b"\x89HDF\r\n\x1a\n", "HDF5"),
    "gguf": (lambda: b"GGUF\3\0\0\0", "GGUF"),
    "index": (lambda: b'{"weight_map": {}}', "is a JSON file"),
    "noise": (lambda: b"\xff" * 100, "not a weight file that samebits knows"),
    "lying header": (lying_header, "not a readable safetensors file"),
    "huge header": (lambda: struct.pack("<Q", 2**62) + b"{" * 64, "not a readable safetensors file"),
    "cut archive": (lambda: saved(Net().state_dict())[:-100], "is damaged or incomplete"),
    "cut old file": (lambda: saved(Net().state_dict(), new=False)[:-100], "is damaged or incomplete"),
    "cut safetensors": (lambda: lying_header()[:40], "not a readable safetensors file"),
    "other zip": (lambda: archive({"a": b""}), "a zip archive that torch.save did not write"),
    "program": (lambda: archive({"data.pkl": b"", "constants.pkl": b""}), "is a TorchScript program, which runs code"),
    "bomb": (
        lambda: archive({"data.pkl": b"\0" * 10_000_000}, zipfile.ZIP_DEFLATED),
        "may unpack to any size. Nothing was read",
    ),
    "lying archive": (lying_archive, "is damaged or incomplete"),
    "lying old file": (lying_old_file, "is damaged or incomplete"),
    "plain pickle": (lambda: pickle.dumps({"a": 1}), "a pickle that torch.save did not write"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_none_is_named_without_memory_for_what_it_claims(tmp_path, name):
    make, message = FILES[name]
    path = tmp_path / "w.pt"
    path.write_bytes(make())
    target = nn.Linear(2, 2)
    before, used = digest_of(target), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(samebits.UsageError, match=message) as caught:
        samebits.load_weights(target, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert digest_of(target) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 100_000  # KiB


def test_a_missing_file_and_a_folder_are_said(tmp_path):
    with pytest.raises(samebits.UsageError, match="There is no file"):
        samebits.load_weights(Net(), tmp_path / "none")
    with pytest.raises(samebits.UsageError, match="is a folder"):
        samebits.load_weights(Net(), tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(samebits.UsageError, match="not a regular file"):
        samebits.load_weights(Net(), tmp_path / "pipe")


def write_state(folder, model, name="model.safetensors", **facts):
    """A state as `run.save_state` writes it, of a model alone."""
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / name)
    text = (folder / name).read_bytes()
    files = {name: SavedFile(len(text), hashlib.sha256(text).hexdigest(), tuple(model.state_dict()))}
    (folder / NAME).write_bytes(Manifest(files, facts).encode())


def test_a_bit_that_flips_in_the_weights_of_a_state_is_found(tmp_path):
    source, target = Net(), Net()
    write_state(tmp_path / "state", source)
    file = tmp_path / "state" / "model.safetensors"
    samebits.load_weights(target, tmp_path / "state")
    samebits.load_weights(target, file)
    assert digest_of(target) == digest_of(source)
    whole, kept = file.read_bytes(), digest_of(target)
    for place in range(0, len(whole), max(len(whole) // 30, 1)):
        harmed = bytearray(whole)
        harmed[place] ^= 1 << place % 8
        file.write_bytes(harmed)
        for path in (tmp_path / "state", file):
            with pytest.raises(samebits.UsageError, match=r"its content is not what was written \(SHA-256\)"):
                samebits.load_weights(target, path)
    assert digest_of(target) == kept
    file.write_bytes(whole)
    manifest = (tmp_path / "state" / NAME).read_bytes()
    (tmp_path / "state" / NAME).write_bytes(manifest.replace(b"samebits-state", b"samebits-stats"))
    with pytest.raises(samebits.UsageError, match=r"manifest\.json is damaged"):
        samebits.load_weights(target, file)


def test_another_programs_manifest_beside_a_file_is_left_alone(tmp_path):
    save_file(Net().state_dict(), tmp_path / "model.safetensors")
    (tmp_path / NAME).write_text('{"name": "a web page"}')
    samebits.load_weights(Net(), tmp_path / "model.safetensors")
    with pytest.raises(samebits.UsageError, match=r"is a folder\. Name the weight file inside it"):
        samebits.load_weights(Net(), tmp_path)


def test_what_is_no_regular_file_in_a_state_is_one_sentence_at_once(tmp_path):
    write_state(tmp_path / "state", Net())
    for name in (NAME, "model.safetensors"):
        path, target = tmp_path / "state" / name, Net()
        whole, kept = path.read_bytes(), digest_of(target)
        (tmp_path / "whole").write_bytes(whole)
        for make, what in ((os.mkfifo, "a FIFO"), (to_zeros, "a link"), (to_whole, "a link"), (os.mkdir, "a folder")):
            path.unlink()
            make(path)
            with pytest.raises((samebits.UsageError, EnvironmentFailure), match=f"it is {what}, not a regular file"):
                samebits.load_weights(target, tmp_path / "state")
            path.rmdir() if path.is_dir() else path.unlink()
            path.write_bytes(whole)
        assert digest_of(target) == kept


def to_zeros(path):
    path.symlink_to("/dev/zero")


def to_whole(path):
    path.symlink_to(path.parent.parent / "whole")


def test_a_link_to_a_weight_file_is_followed(tmp_path):
    save_file(Net().state_dict(), tmp_path / "blob")  # as the cache of a model hub keeps them
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    samebits.load_weights(Net(), tmp_path / "model.safetensors")


def test_several_models_of_a_state_are_named(tmp_path):
    source, target = Net(), Net()
    write_state(tmp_path, source, "model2.safetensors")
    text = (tmp_path / "model2.safetensors").read_bytes()
    (tmp_path / "model1.safetensors").write_bytes(text)
    saved = SavedFile(len(text), hashlib.sha256(text).hexdigest(), ())
    files = {"model1.safetensors": saved, "model2.safetensors": saved}
    (tmp_path / NAME).write_bytes(Manifest(files, {}).encode())
    with pytest.raises(
        samebits.UsageError, match=r"holds 2 models. Name one of them: .*/model1.safetensors, .*/model2"
    ):
        samebits.load_weights(target, tmp_path)
    samebits.load_weights(target, tmp_path / "model2.safetensors")
    assert digest_of(target) == digest_of(source)


def test_weights_of_a_state_that_was_left_between_two_renames_are_found(tmp_path, capsys):
    source, target = Net(), Net()
    write_state(tmp_path / ".state.previous", source)
    samebits.load_weights(target, tmp_path / "state")
    assert digest_of(target) == digest_of(source)
    assert "which is complete" in capsys.readouterr().err


def test_a_name_in_a_file_does_not_act_on_the_terminal(tmp_path):
    save_file({"\x1b[2Jw\n": torch.ones(1)}, tmp_path / "w.safetensors")
    with pytest.raises(samebits.UsageError) as caught:
        samebits.load_weights(Net(), tmp_path / "w.safetensors")
    assert r"unexpected: \x1b[2Jw" in str(caught.value)
