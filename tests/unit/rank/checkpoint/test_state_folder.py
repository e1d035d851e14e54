"""A state folder is replaced as a whole: whenever a program ends, a complete state can be read."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from samebits.errors import EnvironmentFailure, UsageError
from samebits.protocol.state_files.flushed import write_synced
from samebits.protocol.state_files.folder import Move, StateFolder, moves
from samebits.protocol.state_files.manifest import NAME, Manifest, SavedFile, damage
from samebits.rank.checkpoint.format.tensor_file import CODES, Described, TensorFile, TensorFileWriter, order_of
from tests.support.promises import promise


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
    assert damage(place, manifest) is None
    return (place / "a.json").read_bytes()


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_state_is_readable_after_every_move_and_can_be_replaced_again(tmp_path, exchanges):
    for count in range(6):
        path = tmp_path / str(count) / "state"
        save(path, b"old")
        folder = StateFolder(path)
        stage(folder, b"new")
        folder.unmark()
        steps = moves(target_exists=True, previous_exists=False, exchanges=exchanges)
        for move in steps[:count]:
            assert folder.carry_out(move)
        installed = {Move.INSTALL, Move.EXCHANGE} & set(steps[:count])
        assert read(path) == (b"new" if installed else b"old")
        folder._unlock()  # as the kernel does when the program ends
        save(path, b"newest")
        assert read(path) == b"newest"
        assert [entry.name for entry in path.parent.iterdir()] == ["state"]
    assert Move.SYNC in steps


def test_where_folders_cannot_be_exchanged_they_are_moved(tmp_path, monkeypatch):
    monkeypatch.setattr("samebits.protocol.state_files.folder.exchange", lambda *_: False)
    for text in (b"1", b"2", b"3"):
        save(tmp_path / "state", text)
        assert read(tmp_path / "state") == text
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".state.previous").symlink_to(elsewhere)
    save(tmp_path / "state", b"4")
    folder = StateFolder(tmp_path / "state")
    folder.carry_out(Move.RETIRE)  # and the program ends
    assert folder.find() == tmp_path / ".state.samebits-previous"
    assert read(tmp_path / "state") == b"4"
    save(tmp_path / "state", b"5")
    (tmp_path / ".state.samebits-previous").write_text("mine")
    with pytest.raises(
        EnvironmentFailure, match=r"but \.state\.previous and \.state\.samebits-previous beside it are taken"
    ):
        save(tmp_path / "state", b"6")
    assert read(tmp_path / "state") == b"5"


@given(st.booleans(), st.booleans(), st.booleans())
def test_no_move_leaves_nothing_complete(target, previous, exchanges):
    there = {"target": target, "previous": previous}
    for move in moves(target, previous, exchanges):
        match move:
            case Move.REMOVE_PREVIOUS:
                there["previous"] = False
            case Move.RETIRE:
                assert there == {"target": True, "previous": False}
                there = {"target": False, "previous": True}
            case Move.INSTALL:
                assert not there["target"]
                there["target"] = True
            case Move.EXCHANGE:
                assert there["target"]
        assert any(there.values()) or not (target or previous)
        assert there["target"] or not exchanges or not target
    assert there == {"target": True, "previous": False}


def test_a_stage_that_was_not_finished_is_no_state(tmp_path):
    folder = StateFolder(tmp_path / "state")
    folder.begin()
    write_synced(folder.stage / "a.json", b"half")
    assert folder.find() is None
    with pytest.raises(EnvironmentFailure, match="Another program is saving to"):
        StateFolder(tmp_path / "state").begin()
    refused = StateFolder(tmp_path / "state")
    with pytest.raises(EnvironmentFailure):
        refused.begin()
    refused.abandon()
    assert (folder.stage / "a.json").read_bytes() == b"half", "what another program writes is left alone"
    folder.abandon()
    following = StateFolder(tmp_path / "state")
    following.begin()
    folder.abandon()
    assert following.stage.exists()
    following.abandon()
    assert list(tmp_path.iterdir()) == []


def test_nobody_saves_beside_a_program_that_is_putting_a_state_in_place(tmp_path):
    save(tmp_path / "state", b"old")
    folder = StateFolder(tmp_path / "state")
    stage(folder, b"new")
    folder.unmark()
    for move in (Move.EXCHANGE, Move.SYNC, Move.REMOVE_REPLACED):
        folder.carry_out(move)
        with pytest.raises(EnvironmentFailure, match="Another program is saving to"):
            StateFolder(tmp_path / "state").begin()
    folder._unlock()
    save(tmp_path / "state", b"newest")


def test_a_stage_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    folder = StateFolder(tmp_path / "state")
    folder.stage.symlink_to(tmp_path / "mine")
    assert "was not made by samebits" in str(folder.refusal())
    with pytest.raises(OSError, match="Not a directory"):
        folder.begin()
    folder.abandon()
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert folder.stage.is_symlink()


def foreign_things(place):
    """Make things that are somebody else's at `place`, one after the other."""
    place.write_text("mine")
    yield place
    place.unlink()
    os.mkfifo(place)
    yield place
    place.unlink()
    place.mkdir()
    for name in ("thesis.tex", "model.safetensors", "config.json", "manifest.json"):
        (place / name).write_text("mine")
        yield place / name
        (place / name).unlink()
    (place / "folder.json").mkdir()
    yield place / "folder.json"


@pytest.mark.parametrize("exchanges", [True, False])
def test_what_somebody_else_has_beside_a_state_is_never_touched(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr("samebits.protocol.state_files.folder.exchange", lambda *_: False)
    for thing in foreign_things(tmp_path / ".mine.previous"):
        save(tmp_path / "mine", b"one")
        save(tmp_path / "mine", b"two")
        assert os.path.lexists(thing)
        assert StateFolder(tmp_path / "mine").refusal() is None
    for thing in foreign_things(tmp_path / ".other.saving"):
        folder = StateFolder(tmp_path / "other")
        assert "was not made by samebits. Move it away, or save under another name." in str(folder.refusal())
        with pytest.raises((EnvironmentFailure, OSError)):
            folder.begin()
        folder.abandon()
        assert os.path.lexists(thing)


def test_what_somebody_puts_into_a_stage_or_a_state_stays(tmp_path):
    save(tmp_path / "mine", b"one")
    (tmp_path / "mine" / "config.json").write_text("mine")
    assert "is a folder with other things in it" in str(StateFolder(tmp_path / "mine").refusal())
    (tmp_path / "mine" / "config.json").unlink()
    folder = StateFolder(tmp_path / "mine")
    stage(folder, b"two")
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    (folder.stage / "notes.txt").write_text("mine")
    with pytest.raises(EnvironmentFailure, match="with other things in it"):
        folder.install()
    folder.abandon()
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert (folder.stage / "notes.txt").exists()


def test_two_programs_that_save_at_once_never_miss_a_file(tmp_path):
    """Each save succeeds, or says that the other one is saving; a reader always finds a complete state."""
    save(tmp_path / "state", b"first")
    program = (
        "import sys\n"
        "from samebits.protocol.state_files.flushed import write_synced\n"
        "from samebits.protocol.state_files.folder import StateFolder\n"
        "from samebits.protocol.state_files.manifest import NAME, Manifest, SavedFile\n"
        "from samebits.errors import EnvironmentFailure\n"
        "saved = 0\n"
        "for number in range(150):\n"
        "    folder = StateFolder(sys.argv[1])\n"
        "    try:\n"
        "        if problem := folder.refusal():\n"
        "            raise EnvironmentFailure(str(problem))\n"
        "        folder.begin()\n"
        "        text = b'%d ' % number * 3000\n"
        "        write_synced(folder.stage / 'a.json', text)\n"
        "        write_synced(folder.stage / NAME, Manifest({'a.json': SavedFile.of(text)}, {}).encode())\n"
        "        folder.install()\n"
        "        saved += 1\n"
        "    except EnvironmentFailure as error:\n"
        "        folder.abandon()\n"
        "        assert 'Another program is saving to' in str(error), error\n"
        "print(saved)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "state")]
    savers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    looks = 0
    while any(saver.poll() is None for saver in savers):
        assert StateFolder(tmp_path / "state").find() is not None
        looks += 1
    saved = [int(saver.communicate()[0] or 0) for saver in savers]
    print(f"{saved} of 300 saves made, {looks} looks")
    assert [saver.returncode for saver in savers] == [0, 0]
    assert sum(saved) > 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_a_state_that_is_replaced_while_it_is_looked_for_is_found(tmp_path):
    folder = StateFolder(tmp_path / "state")

    class Target(type(folder.target)):
        def __truediv__(self, name):  # after the first look, the program that replaces it ends its work
            if not os.path.lexists(tmp_path / "state"):
                save(tmp_path / "state", b"new")
                return super().__truediv__("nothing yet")
            return super().__truediv__(name)

    folder.target = Target(folder.target)
    assert folder.find() == folder.target


def test_an_empty_folder_does_not_cost_the_state_that_was_left_over(tmp_path):
    path = tmp_path / "state"
    save(path, b"old")
    folder = StateFolder(path)
    folder.carry_out(Move.RETIRE)  # and the program ends
    path.mkdir()
    stage(folder, b"new")
    kept = []
    carry_out = folder.carry_out
    folder.carry_out = lambda move: (carry_out(move), kept.append(read(path)))[0]
    folder.install()
    assert kept[0] == b"new"
    assert set(kept) <= {b"old", b"new"}


def test_a_place_that_cannot_be_looked_at_is_one_sentence(tmp_path):
    for name in ("x" * 300, "a\0b"):
        assert "A state cannot be saved to" in str(StateFolder(tmp_path / name).refusal())
    with pytest.raises(UsageError, match="cannot be read"):
        StateFolder(tmp_path / ("x" * 300)).read_manifest()


@promise(
    "save-and-resume",
    "Nothing of somebody else is replaced or removed; two programs that save to one path miss no file",
    also=[
        "test_what_somebody_else_has_beside_a_state_is_never_touched",
        "test_two_programs_that_save_at_once_never_miss_a_file",
        "test_a_save_beside_another_programs_save_leaves_its_files_alone",
    ],
)
def test_a_place_that_holds_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text("{}")
    save(tmp_path / "state", b"x")
    assert StateFolder(tmp_path / "state").refusal() is None
    assert "with other things in it" in str(StateFolder(tmp_path / "web").refusal())
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert "is a file; a state is a folder" in str(StateFolder(tmp_path / "file").refusal())
    assert "with other things in it" in str(StateFolder(tmp_path / "folder").refusal())
    assert "is a link" in str(StateFolder(tmp_path / "link").refusal())
    assert "the root" in str(StateFolder("/").refusal())
    assert StateFolder(tmp_path / "empty").refusal() is None
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
        body = json.loads(Manifest({}, {"samebits": "9.0"}).encode())
        body |= changes
        del body["sha256_of_the_rest"]
        checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        return Manifest.decode(json.dumps({**body, "sha256_of_the_rest": checksum}).encode(), tmp_path)

    assert decode().files == {}
    with pytest.raises(UsageError, match=r"written by a newer samebits \(9.0, format 3"):
        decode(version=3)
    with pytest.raises(UsageError, match="is damaged"):
        decode(files={"a.json": {"size": float("inf"), "sha256": "", "tensors": []}})
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
    assert written == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "not_finite": ""}
    loaded, file = load_file(tmp_path / "w"), TensorFile(tmp_path / "w")
    assert file.described == described
    for name, tensor in tensors.items():
        for other in (loaded[name], file.get(name)):
            assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape)
            assert other.contiguous().view(-1).view(torch.uint8).equal(tensor.contiguous().view(-1).view(torch.uint8))
    with pytest.raises(UsageError, match="x is a tensor that safetensors cannot hold"):
        Described.of(torch.ones(2).to_sparse(), "x")


def test_a_name_that_no_tensor_file_can_hold_is_refused():
    for name in ("__metadata__", "half of a pair: \ud83d"):
        with pytest.raises(UsageError, match="cannot be the name of a tensor"):
            Described.of(torch.ones(1), name)
    assert Described.of(torch.ones(1), "layer.하나") == Described("F32", (1,))
