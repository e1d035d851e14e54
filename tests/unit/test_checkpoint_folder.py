"""A state folder is replaced as a whole: whenever a program ends, a complete state can be read."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from lockstep.checkpoint.folder import Move, StateFolder, moves, write_synced
from lockstep.checkpoint.manifest import NAME, Manifest, SavedFile, damage
from lockstep.checkpoint.tensor_file import CODES, Described, TensorFile, TensorFileWriter, order_of
from lockstep.errors import UsageError, WorldError


def stage(folder, text):
    """Write a complete stage that says `text`."""
    folder.begin()
    write_synced(folder.stage / "a.json", text)
    write_synced(folder.stage / NAME, Manifest({"a.json": SavedFile.of(text)}, {"step": 3}).encode())


def save(path, text):
    folder = StateFolder(path)
    stage(folder, text)
    folder.install()


def read(path):
    place, manifest = StateFolder(path).read_manifest()
    assert damage(place, manifest) == ""
    return (place / "a.json").read_bytes()


def test_a_state_is_readable_after_every_move_and_can_be_replaced_again(tmp_path):
    for count in range(6):
        path = tmp_path / str(count) / "state"
        save(path, b"old")
        folder = StateFolder(path)
        stage(folder, b"new")
        steps = moves(target_exists=True, previous_exists=False)
        for move in steps[:count]:
            folder.carry_out(move)
        installed = Move.INSTALL in steps[:count]
        assert read(path) == (b"new" if installed else b"old")
        folder._unlock()  # as the kernel does when the program ends
        save(path, b"newest")
        assert read(path) == b"newest"
        assert [entry.name for entry in path.parent.iterdir()] == ["state"]
    assert Move.SYNC in steps


@given(st.booleans(), st.booleans())
def test_no_move_leaves_nothing_complete(target, previous):
    there = {"target": target, "previous": previous}
    for move in moves(target, previous):
        match move:
            case Move.REMOVE_PREVIOUS:
                there["previous"] = False
            case Move.RETIRE:
                assert there == {"target": True, "previous": False}
                there = {"target": False, "previous": True}
            case Move.INSTALL:
                assert not there["target"]
                there["target"] = True
        assert any(there.values()) or not (target or previous)
    assert there == {"target": True, "previous": False}


def test_a_stage_that_was_not_finished_is_no_state(tmp_path):
    folder = StateFolder(tmp_path / "state")
    folder.begin()
    write_synced(folder.stage / "a.json", b"half")
    assert folder.find() is None
    with pytest.raises(WorldError, match="Another program is saving to"):
        StateFolder(tmp_path / "state").begin()
    folder.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_holds_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text("{}")
    save(tmp_path / "state", b"x")
    assert StateFolder(tmp_path / "state").refusal() == ""
    assert "with other things in it" in StateFolder(tmp_path / "web").refusal()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert "is a file; a state is a folder" in StateFolder(tmp_path / "file").refusal()
    assert "with other things in it" in StateFolder(tmp_path / "folder").refusal()
    assert "is a link" in StateFolder(tmp_path / "link").refusal()
    assert "not the root" in StateFolder("/").refusal()
    assert StateFolder(tmp_path / "empty").refusal() == ""
    for name in ("file", "folder"):
        with pytest.raises(UsageError, match=r"a state that run\.save_state wrote"):
            StateFolder(tmp_path / name).find()


@given(st.data())
def test_a_bit_that_flips_in_the_manifest_is_found(data):
    manifest = Manifest({"a.json": SavedFile(3, "00ff", ("w",))}, {"step": 3, "lanes": 4})
    text = bytearray(manifest.encode())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded, said = Manifest.decode(bytes(text), Path("x")), ""
    except UsageError as error:
        decoded, said = None, str(error)
    assert "manifest.json is damaged" in said or decoded == manifest  # where it was white space


def test_a_manifest_of_a_newer_version_or_with_strange_names_is_refused(tmp_path):
    def decode(**changes):
        body = json.loads(Manifest({}, {"lockstep": "9.0"}).encode())
        body |= changes
        del body["sha256_of_the_rest"]
        checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        return Manifest.decode(json.dumps({**body, "sha256_of_the_rest": checksum}).encode(), tmp_path)

    assert decode().files == {}
    with pytest.raises(UsageError, match=r"written by a newer lockstep \(9.0, format 2"):
        decode(version=2)
    with pytest.raises(UsageError, match=r"names the file '[.]{2}/[.]{2}/etc/passwd'"):
        decode(files={"../../etc/passwd": {"size": 1, "sha256": "", "tensors": []}})


def test_a_tensor_file_is_plain_safetensors_of_every_dtype(tmp_path):
    torch.manual_seed(0)
    tensors = {str(dtype): (torch.rand(3, 5) * 4).to(dtype) for dtype in CODES}
    tensors |= {"scalar": torch.tensor(2.5), "none": torch.empty(0, 3), "strided": torch.rand(4, 6).t()[::2]}
    described = {name: Described.of(tensor, name) for name, tensor in tensors.items()}
    writer = TensorFileWriter(tmp_path / "w", described)
    for name in order_of(described):
        writer.write(tensors[name])
    written = writer.finish()
    data = (tmp_path / "w").read_bytes()
    assert written == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    loaded, file = load_file(tmp_path / "w"), TensorFile(tmp_path / "w")
    assert file.described == described
    for name, tensor in tensors.items():
        for other in (loaded[name], file.get(name)):
            assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape)
            assert other.contiguous().view(-1).view(torch.uint8).equal(tensor.contiguous().view(-1).view(torch.uint8))
    with pytest.raises(UsageError, match="x is a tensor that safetensors cannot hold"):
        Described.of(torch.ones(2).to_sparse(), "x")
