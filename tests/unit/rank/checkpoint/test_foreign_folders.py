"""What others wrote is named for what it is, where a state or weights are expected."""

import os
import re
import threading

import pytest
from torch import nn

import samebits
from samebits.errors import UsageError
from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import NAME, Manifest, SavedFile, loads
from tests.support.promises import promise


def foreign(place):
    (place / "dcp").mkdir()
    (place / "dcp" / ".metadata").touch()
    (place / "old-dcp").mkdir()
    (place / "old-dcp" / "__0_0.distcp").touch()
    (place / "web").mkdir()
    (place / "web" / NAME).write_text('{"name": "an application"}')
    (place / "deep").mkdir()
    (place / "deep" / NAME).write_text("[" * 100_000)
    (place / "other").mkdir()
    (place / "other" / "notes").touch()
    (place / "net.pt").touch()
    os.mkfifo(place / "pipe")
    return {
        **dict.fromkeys(
            ("dcp", "old-dcp"), "was written by torch.distributed.checkpoint, not by samebits. Read it with"
        ),
        **dict.fromkeys(("web", "deep"), f"has a {NAME} that samebits did not write. Check the path."),
        "other": f"is a folder without {NAME}, not a state that run.save_state wrote. Use samebits.load_weights",
        "net.pt": "is a file, not a state that run.save_state wrote. Use samebits.load_weights",
        "pipe": "is a FIFO, not a state that run.save_state wrote. Check the path.",
    }


@promise(
    "save-and-resume",
    "Hostile states, lying headers, keys that come twice, FIFOs and what other programs wrote are refused "
    "at once, before a model is written to",
    also=[
        "test_a_manifest_of_somebody_else_is_no_state",
        "test_a_header_that_lies_is_refused",
        "test_a_key_that_comes_twice_makes_a_file_say_two_things",
        "test_a_changed_state_is_refused_before_the_model_is_written_to_or_can_be_gone_on_with",
        "test_what_is_no_regular_file_is_one_sentence_at_once",
    ],
)
def test_what_others_wrote_is_not_called_a_damaged_state(tmp_path):
    for name, words in foreign(tmp_path).items():
        with pytest.raises(UsageError, match=f"/{name} {re.escape(words)}"):
            StateFolder(tmp_path / name).read_manifest()


def test_a_manifest_of_ours_that_is_beyond_recognition_is_damaged(tmp_path):
    (tmp_path / "state.json").write_text("{}")
    for text in (b"", b"\0" * 400, b'{"format": "samebits-state"'):
        (tmp_path / NAME).write_bytes(text)
        with pytest.raises(UsageError, match="is damaged; the state in this folder cannot be trusted"):
            StateFolder(tmp_path).read_manifest()


def test_a_key_that_comes_twice_makes_a_file_say_two_things(tmp_path):
    """Readers differ in which one they take, and a checksum over what was read does not tell."""
    assert loads('{"a": {"b": 1}, "c": [{"b": 1}, {"b": 2}]}') == {"a": {"b": 1}, "c": [{"b": 1}, {"b": 2}]}
    for text in ('{"a": 1, "a": 1}', '{"c": [{"b": 1, "b": 2}]}'):
        with pytest.raises(ValueError, match="a key comes twice"):
            loads(text)
    text = Manifest({}, {"step": 4}).encode()
    assert Manifest.decode(text, tmp_path).facts == {"step": 4}
    with pytest.raises(UsageError, match="is damaged; the state in this folder cannot be trusted"):
        Manifest.decode(text.replace(b'"step": 4', b'"step": 5, "step": 4'), tmp_path)


def test_load_weights_names_a_distributed_checkpoint(tmp_path):
    foreign(tmp_path)
    with pytest.raises(UsageError, match=r"dcp was written by torch\.distributed\.checkpoint"):
        samebits.load_weights(nn.Linear(1, 1), tmp_path / "dcp")


def test_a_state_inside_a_state_is_refused_for_the_outer_one_could_not_be_replaced(tmp_path):
    (tmp_path / "outer").mkdir()
    manifest = Manifest({"state.json": SavedFile.of(b"{}")}, {}).encode()
    (tmp_path / "outer" / NAME).write_bytes(manifest)
    assert str(StateFolder(tmp_path / "outer" / "best").refusal()).endswith(
        "outer/best would be inside a state, which samebits would no longer take for its own. Save it beside the other one."
    )
    assert StateFolder(tmp_path / "best").refusal() is None


@pytest.mark.parametrize("given", [{"mesh": 3}, {"strategy": 5}, {"schedule": ()}])
def test_words_of_init_are_words(given):
    with pytest.raises(UsageError, match=r"must be a word, but is .*\. Leave it out to let samebits choose\."):
        samebits.init(**given)


def test_a_state_that_comes_and_goes_is_there_or_not_and_never_called_something_else(tmp_path):
    place, aside, ends = tmp_path / "step-1", tmp_path / "aside", threading.Event()
    aside.mkdir()
    (aside / NAME).touch()

    def move():
        while not ends.is_set():
            aside.rename(place)
            place.rename(aside)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        found = {StateFolder(place).find() for _ in range(5_000)}
    finally:
        ends.set()
        mover.join()
    assert found <= {None, place}
