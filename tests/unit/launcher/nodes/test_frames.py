"""Frames between launchers: whatever happens to them on the way is noticed, and nothing is kept on trust."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.launcher.nodes.session import TAG_BYTES, Opener, Sealer
from samebits.protocol.message import packed, unpacked

KEY = b"k" * 32
contents = st.lists(st.binary(max_size=300), max_size=6)


@given(contents, st.integers(1, 50))
def test_what_was_sealed_is_opened_in_whatever_pieces_it_comes(entry, size):
    sealer, opener = Sealer(KEY), Opener(KEY)
    wire = b"".join(map(sealer.seal, entry))
    assert [one for at in range(0, len(wire), size) for one in opener.open(wire[at : at + size])] == entry


@given(contents.filter(bool), st.data())
def test_a_bit_that_was_changed_is_noticed_before_its_frame_is_used(entry, data):
    sealer, opener = Sealer(KEY), Opener(KEY)
    wire = bytearray(b"".join(map(sealer.seal, entry)))
    at = data.draw(st.integers(0, len(wire) - 1))
    wire[at] ^= 1 << data.draw(st.integers(0, 7))
    opened = []
    try:
        opened += opener.open(bytes(wire))
        assert len(opened) < len(entry), "a longer frame is waited for"
    except ValueError:
        pass
    assert entry[: len(opened)] == opened


@pytest.mark.parametrize(
    "order",
    [
        pytest.param([0, 0], id="repeated"),
        pytest.param([1], id="the first left out"),
        pytest.param([1, 0], id="in another order"),
    ],
)
def test_frames_count(order):
    sealer = Sealer(KEY)
    frames = [sealer.seal(b"one"), sealer.seal(b"two")]
    with pytest.raises(ValueError, match="tag"):
        list(Opener(KEY).open(b"".join(frames[place] for place in order)))


def test_a_frame_of_the_other_direction_is_none():
    with pytest.raises(ValueError, match="tag"):
        list(Opener(b"other" * 7).open(Sealer(KEY).seal(b"sent back")))


def test_a_length_that_is_too_long_ends_the_connection_before_anything_of_it_came():
    with pytest.raises(ValueError, match="4294967295 bytes"):
        list(Opener(KEY).open(b"\xff" * 4))
    with pytest.raises(ValueError, match="17000000"):
        Sealer(KEY).seal(bytes(17_000_000))


def test_what_is_cut_off_is_not_used_and_takes_no_more_memory_than_came():
    opener = Opener(KEY)
    assert list(opener.open((1 << 23).to_bytes(4, "big") + b"some")) == []
    assert len(opener._frames._came) == 4 + 4
    frame = Sealer(KEY).seal(b"whole")
    assert list(Opener(KEY).open(frame[:-1])) == []
    assert len(frame) == 4 + 5 + TAG_BYTES


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)), st.binary(max_size=50))
def test_a_message_is_json_and_bytes(entry, blob):
    assert unpacked(packed(entry, blob)) == (entry, blob)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0", b"\0\0\0\5{}", b"\0\0\0\2[]", b"\0\0\0\1{", b"\0\1\0\0" + b"[" * (1 << 16)]
)
def test_anything_else_is_no_message(content):
    with pytest.raises(ValueError):
        unpacked(content)
