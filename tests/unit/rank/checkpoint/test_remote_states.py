"""A state at a URL is there when its manifest is: whatever fails on the way, a whole one is read, or the one before."""

import io
import json
import os
import threading
import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import EnvironmentFailure, SamebitsError, UsageError
from samebits.protocol.state_files import remote_files, remote_state
from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import NAME, NOT_FINITE, Manifest, SavedFile, _checksum, damage
from samebits.protocol.state_files.remote_files import RemoteError, RemoteFiles, reason_of, within
from samebits.protocol.state_files.remote_state import (
    RemoteState,
    RemoteStore,
    fetch_weights,
    left_over,
    named,
    stored_name,
)
from samebits.protocol.url import below, check_shared, check_url, is_url, parted
from samebits.rank.checkpoint.store.store import Store

TAKEN_S = 1234567.75
CHECK = "Check the address and the network."


class Faulty(MemoryFileSystem):
    """A store that fails at the call that is counted down to, and does something before another."""

    protocol = "faulty"
    cachable = False
    left = -1
    before_open = None

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("faulty://", "memory://", 1))

    def _count(self):
        if not Faulty.left:
            raise ConnectionError("the network is down")
        Faulty.left -= 1

    def put_file(self, lpath, rpath, **kwargs):
        self._count()
        super().put_file(lpath, rpath, **kwargs)

    def rm_file(self, path):
        self._count()
        super().rm_file(path)

    def ls(self, path, detail=True, **kwargs):
        self._count()
        return super().ls(path, detail=detail, **kwargs)

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        self._count()
        super().pipe_file(path, value, mode, **kwargs)

    def open(self, path, mode="rb", **kwargs):
        self._count()
        if mode == "rb" and Faulty.before_open is not None:
            act, Faulty.before_open = Faulty.before_open, None
            act()
        return super().open(path, mode, **kwargs)


fsspec.register_implementation("faulty", Faulty, clobber=True)


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return f"file://{tmp_path}/there/exp1" if request.param == "file" else f"memory://{uuid.uuid4().hex}/exp1"


def made(folder, model=b"weights", state=b"{}", step=5, **facts):
    """A state of the disk."""
    folder.mkdir(parents=True)
    files = {"model.safetensors": model, "state.json": state}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    saved = {name: SavedFile.of(content) for name, content in files.items()}
    (folder / NAME).write_bytes(Manifest(saved, {"step": step, "seed": 3, **facts}).encode())
    os.utime(folder / NAME, (TAKEN_S, TAKEN_S))
    return folder


def trouble_of_putting(url, folder):
    try:
        RemoteState(url).put(folder)
    except RemoteError as error:
        return str(error)
    return ""


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fetched(url, folder):
    """What is at a URL, if all of it is."""
    assert RemoteState(url).fetch(folder)
    found = StateFolder(folder).read_manifest()
    assert damage(*found) is None
    return content(folder)


def test_a_state_comes_back_with_its_bytes_and_its_time(tmp_path, url):
    state = made(tmp_path / "state")
    assert not RemoteState(url).fetch(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    RemoteState(url).put(state)
    assert fetched(url, tmp_path / "copy") == content(state)
    assert (tmp_path / "copy" / NAME).stat().st_mtime == TAKEN_S
    RemoteState(url).remove()
    assert RemoteFiles(url).names() == []


def test_a_state_that_replaces_another_leaves_nothing_of_it_and_all_files_of_others(tmp_path, url):
    (tmp_path / "notes.txt").write_text("mine")
    RemoteFiles(url).put("notes.txt", tmp_path / "notes.txt")
    RemoteState(url).put(made(tmp_path / "old", b"old", b"{1}"))
    same = next(name for name in RemoteFiles(url).names() if name.startswith("state-"))
    new = made(tmp_path / "new", b"new", b"{1}", step=6)
    RemoteState(url).put(new)
    assert fetched(url, tmp_path / "copy") == content(new)
    names = RemoteFiles(url).names()
    assert len(names) == 4
    assert {NAME, "notes.txt", same} < set(names)
    RemoteState(url).remove()
    assert RemoteFiles(url).names() == ["notes.txt"]


def test_a_failure_at_any_call_leaves_one_of_the_two_and_the_next_save_works(tmp_path):
    old, new, newest = (
        made(tmp_path / name, name.encode(), b"{}", at) for at, name in enumerate(["old", "new", "last"])
    )
    for count in range(40):
        url = f"faulty://{uuid.uuid4().hex}/exp1"
        Faulty.left = -1
        RemoteState(url).put(old)
        Faulty.left = count
        problem = trouble_of_putting(url, new)
        assert problem in ("", f"{url} cannot be used: the network is down (ConnectionError). {CHECK}")
        is_done, has_failed = not problem, Faulty.left == 0
        Faulty.left = -1
        found = fetched(url, tmp_path / f"copy{count}")
        assert found == content(new) if is_done else found in (content(old), content(new))
        remote_state._may_come_late.clear()  # the next start of the run
        RemoteState(url).put(newest)
        assert fetched(url, tmp_path / f"last{count}") == content(newest)
        assert len(RemoteFiles(url).names()) == 3, "what failed is swept away"
        if not has_failed:
            break
    assert 5 < count < 39


def test_a_damaged_file_is_replaced_by_the_next_save_of_the_same_state(tmp_path, url):
    state = made(tmp_path / "state")
    RemoteState(url).put(state)
    (tmp_path / "bad").write_bytes(b"XXXXXXX")
    RemoteFiles(url).put(next(name for name in RemoteFiles(url).names() if name.startswith("model")), tmp_path / "bad")
    RemoteState(url).put(state)
    assert fetched(url, tmp_path / "copy") == content(state)


def test_a_manifest_of_somebody_else_stays_and_so_do_weights_beside_a_state(tmp_path, url):
    (tmp_path / "x").write_text("{}")
    for name in (NAME, "model.safetensors"):
        RemoteFiles(url).put(name, tmp_path / "x")
    state = made(tmp_path / "state")
    for act in (lambda: RemoteState(url).put(state), RemoteState(url).remove):
        with pytest.raises(UsageError, match=r"exp1 has a manifest\.json that samebits did not write"):
            act()
    assert RemoteFiles(url).names() == [NAME, "model.safetensors"]
    RemoteFiles(url).remove(NAME)
    for number in range(2):
        RemoteState(url).put(made(tmp_path / f"state{number}", model=bytes(number)))
    RemoteState(url).remove()
    assert RemoteFiles(url).names() == ["model.safetensors"]


def test_a_manifest_that_arrives_after_it_was_given_up_names_files_that_are_there(tmp_path, monkeypatch):
    """The request was stuck: a later save went through before it."""
    url, late, pipe_file = f"faulty://{uuid.uuid4().hex}/exp1", [], Faulty.pipe_file
    old, new = made(tmp_path / "old", b"old"), made(tmp_path / "new", b"new")

    def stuck(self, path, value, *args, **kwargs):
        if not late:
            late.append((path, value))
            raise TimeoutError
        pipe_file(self, path, value, *args, **kwargs)

    monkeypatch.setattr(Faulty, "pipe_file", stuck)
    assert "TimeoutError" in trouble_of_putting(url, old)
    RemoteState(url).put(new)
    assert fetched(url, tmp_path / "copy") == content(new)
    Faulty().pipe_file(*late[0])
    assert fetched(url, tmp_path / "again") == content(old)


def test_a_folder_that_was_uploaded_as_it_is_is_read(tmp_path):
    state = made(tmp_path / "state")
    assert fetched(f"file://{state}", tmp_path / "copy") == content(state)


def test_a_state_that_is_replaced_while_it_is_read_is_read_again(tmp_path):
    url = f"faulty://{uuid.uuid4().hex}/exp1"
    RemoteState(url).put(made(tmp_path / "old", b"old"))
    new = made(tmp_path / "new", b"new", b"{2}")
    Faulty.before_open = lambda: RemoteState(url).put(new)
    assert fetched(url, tmp_path / "copy") == content(new)


def sealed(files, **facts):
    """A manifest that says anything, with a checksum that fits."""
    body = {"version": 1, **facts, "files": files}
    text = {"format": "samebits-state", **body}
    return json.dumps({**text, "sha256_of_the_rest": _checksum(text)}).encode()


def entry(size=4, sha256="0" * 64):
    return {"size": size, "sha256": sha256, "tensors": []}


HOSTILE = {
    "above": sealed({"../escaped.json": entry()}),
    "absolute": sealed({"/tmp/escaped.json": entry()}),
    "folder": sealed({"a/b.json": entry()}),
    "hidden": sealed({".ssh": entry()}),
    "the manifest itself": sealed({NAME: entry(), "saving.json": entry()}),
    "no hash": sealed({"state.json": entry(sha256="../../escaped")}),
    "negative": sealed({"state.json": entry(size=-1)}),
    "many digits": sealed({"state.json": entry(size=10**999)}),
    "a time that is none": sealed({"state.json": entry()}, saved_s=float("nan")),
    "a time that is a list": sealed({"state.json": entry()}, saved_s=[1]),
    "no JSON": b"\0" * 100,
    "deep": b"[" * 100_000,
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused_and_nothing_is_written_outside_of_the_folder(tmp_path, name):
    there, room = tmp_path / "there" / "exp1", tmp_path / "room"
    there.mkdir(parents=True)
    room.mkdir()
    for path in (
        there / NAME,
        there / "state.json",
        there.parent / "escaped.json",
        there / ("state-" + "0" * 64 + ".json"),
    ):
        path.write_bytes(HOSTILE[name] if path.name == NAME else b"evil")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SamebitsError):
        RemoteState(f"file://{there}").fetch(room / "copy")
        found = StateFolder(room / "copy").read_manifest()
        raise damage(*found)
    assert [path for path in sorted(tmp_path.rglob("*")) if room not in path.parents] == before
    assert {path.name for path in room.rglob("*")} <= {"copy", NAME, "state.json"}


def test_not_more_than_a_byte_too_many_is_copied(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / NAME).write_bytes(sealed({"state.json": entry(size=10)}))
    (there / "state.json").write_bytes(b"x" * (3 << 20))
    assert RemoteState(f"file://{there}").fetch(tmp_path / "copy")
    assert (tmp_path / "copy" / "state.json").stat().st_size == 11


def test_a_state_that_does_not_fit_on_the_disk_is_not_copied(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / NAME).write_bytes(sealed({"state.json": entry(size=1 << 60)}))
    with pytest.raises(EnvironmentFailure, match=r"there has 4398047 MB, and the disk of .* has room for"):
        RemoteState(f"file://{there}").fetch(tmp_path / "copy")


def copied(state, url, keep):
    return Store(state.parent, keep, url).added(state)


def ring_of(url, place, *steps, keep=2):
    for step in steps:
        name = f"step-{step:08d}"
        assert copied(made(place / name, name.encode(), step=step), url, keep) == ""
    return RemoteStore(url, keep)


def test_a_ring_keeps_the_newest_and_what_is_not_ours(tmp_path, url):
    ring_of(url, tmp_path / "here", 2, 4)
    (tmp_path / "x").write_bytes(b"half")
    for name in ("step-00000003", "best-model"):  # a killed upload, and a folder of somebody else
        RemoteFiles(below(url, name)).put(stored_name("model.safetensors", SavedFile.of(b"x")), tmp_path / "x")
    ring = ring_of(url, tmp_path / "here", 6)
    assert ring.newest_first() == ["step-00000006", "step-00000004"]
    assert "best-model" in RemoteFiles(url).names()


def test_the_newest_whole_state_is_brought_if_the_disk_has_none_as_new(tmp_path, url):
    ring = ring_of(url, tmp_path / "here", 2, 4, 6, keep=3)
    assert ring.fetch_newest(tmp_path / "elsewhere", 6) == ("", [])
    newest = RemoteFiles(below(url, "step-00000006"))
    (tmp_path / "bad").write_bytes(b"step-XXXXXXXX")
    newest.put(next(name for name in newest.names() if name.startswith("model")), tmp_path / "bad")
    name, [problem] = ring.fetch_newest(tmp_path / "elsewhere", 2)
    assert name == "step-00000004"
    assert problem.startswith(f"{url}/step-00000006/model.safetensors is damaged: its content is not")
    assert content(tmp_path / "elsewhere" / name) == content(tmp_path / "here" / name)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == [name]


def test_the_newest_finite_state_at_a_url_is_neither_removed_nor_passed_by(tmp_path, url):
    ring = ring_of(url, tmp_path / "here", 2)
    for step in (4, 6, 8):
        folder = made(tmp_path / "here" / f"step-{step:08d}", b"x", step=step, **{NOT_FINITE: "0.weight"})
        assert copied(folder, url, 2) == ""
    assert ring.newest_first() == ["step-00000008", "step-00000006", "step-00000002"]
    name, problems = ring.fetch_newest(tmp_path / "elsewhere", -1)
    assert name == "step-00000002"
    assert problems[0] == f"{url}/step-00000008 is not finite (0.weight)."
    assert ring.fetch_newest(tmp_path / "any", -1, takes_any=True) == ("step-00000008", [])


@given(st.sets(st.sampled_from(["a.json", "model.safetensors", "state.json", "x"])), st.binary(max_size=2))
def test_what_a_manifest_names_is_never_left_over_and_files_of_others_neither(names, text):
    manifest = Manifest({name: SavedFile.of(text) for name in names}, {})
    stored = [stored_name(name, file) for name, file in manifest.files.items()]
    others = ["notes.txt", "a-b.json", "model-12.safetensors", "..", "readme"]
    old = stored_name("model.safetensors", SavedFile.of(b"old"))
    parts = [f"{one}.{'0' * 16}.part" for one in (old, NAME)]
    assert left_over([*stored, *others, NAME, old, *parts], manifest) == [old, *parts]


def test_a_store_that_does_not_answer_is_one_sentence(monkeypatch, tmp_path):
    blocked = threading.Event()
    monkeypatch.setattr(remote_files, "LIMIT_S", 0.1)
    monkeypatch.setattr(Faulty, "_count", lambda _: blocked.wait())
    problem = copied(made(tmp_path / "step-00000002"), "faulty://bucket/exp1", 2)
    blocked.set()
    assert problem.endswith(f"/exp1/step-00000002 cannot be used: no answer within 0 s (TimeoutError). {CHECK}")


def test_a_read_that_hangs_is_given_up_soon_however_large_the_file_may_be(monkeypatch):
    blocked = threading.Event()

    class Hanging(io.BytesIO):
        def read(self, _size=-1):
            blocked.wait()

    monkeypatch.setattr(remote_files, "LIMIT_S", 0.1)
    monkeypatch.setattr(remote_files, "MORE_S_PER_MB", 0.1)
    monkeypatch.setattr(Faulty, "open", lambda *_: Hanging())
    with pytest.raises(RemoteError, match="no answer within 0 s"):
        RemoteFiles("faulty://bucket/exp1").read("model", io.BytesIO(), 1 << 40)
    blocked.set()


def test_what_a_call_raises_or_returns_comes_through():
    assert within(9.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(9.0, lambda: 1 // 0)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RemoteError, match=r"cannot be used: .* \(\w+Error\)\. Check"):
        RemoteState(f"file://{tmp_path}/file/exp1").put(made(tmp_path / "state"))


def test_no_message_has_a_credential(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush-hush")
    said = reason_of(OSError("no access to ftp://me:word@host/a?X-Amz-Signature=abcd with hush-hush-hush\nsecond line"))
    assert said == "no access to ftp://…@host/a?… with … (OSError)"
    assert (
        reason_of(OSError(28, "No space left on device", "/here", None, "/there"))
        == "No space left on device (OSError)"
    )


REFUSED = {
    "s4://bucket/x": "does not know",
    "tos://bucket/x": "pip install tosfs",
    "ftp://me:word@host/x": "a password in it",
    "s3://": "no place",
    "s3://AKIA:se/cret/word@bucket/x": "a password in it",
    "file:///": "Write file:///folder/exp1.",
    "simplecache::s3://bucket/x": "chains",
    "zip://x::s3://bucket/x": "chains",
}


def test_what_can_be_known_of_a_url_is_said_before_anything_starts():
    for text, word in REFUSED.items():
        with pytest.raises(UsageError, match=word) as caught:
            check_url(text)
        assert "word" not in str(caught.value).replace("password", "")


def test_a_url_is_not_a_path():
    assert [is_url(one) for one in ("memory://a", "s3://b/c", "a/b", "/a:b", Path("c:d"), "a:b/c")] == [True] * 2 + [
        False
    ] * 4
    with pytest.raises(UsageError, match="has one slash"):
        is_url(Path("s3://bucket/x"))
    assert parted("https://host/a/b.pt?key=c/d") == ("https://host/a", "b.pt?key=c/d")
    with pytest.raises(UsageError, match="does not name a file"):
        parted("s3://bucket")


def test_states_of_a_named_run_need_a_place_that_another_process_reaches():
    check_shared("file:///tmp/runs", "--states")
    for text, problem in (
        ("memory://a", "lives in one process only"),
        ("runs/a", "--states must be a URL, but is"),
        (None, "--states must be a URL, but is None"),
        ("file:///runs?key=word", r"has a question mark in it, .* \(file:///runs\)"),
    ):
        with pytest.raises(UsageError, match=problem):
            check_shared(text, "--states")


def test_weights_are_found_in_a_state_and_alone(tmp_path, url):
    RemoteState(url).put(made(tmp_path / "state"))
    (room := tmp_path / "room").mkdir()
    assert (fetch_weights(url, room) / "model.safetensors").read_bytes() == b"weights"
    (tmp_path / "net.pt").write_bytes(b"net")
    RemoteFiles(url).put("net.pt", tmp_path / "net.pt")
    assert fetch_weights(below(url, "net.pt"), tmp_path / "room").read_bytes() == b"net"
    with pytest.raises(UsageError, match="There are no weights at"):
        fetch_weights(below(url, "nothing"), tmp_path / "room")


def test_errors_name_the_url_and_not_the_folder_of_the_copy(tmp_path):
    with pytest.raises(UsageError, match=r"^s3://b/x/model is damaged\. Use s3://b/x\.$"), named(tmp_path, "s3://b/x"):
        raise UsageError(f"{tmp_path}/model is damaged.", f"Use {tmp_path}.")
    with pytest.raises(EnvironmentFailure, match=r"^s3://b/x is full$"), named(tmp_path, "s3://b/x"):
        raise EnvironmentFailure(f"{tmp_path} is full")
