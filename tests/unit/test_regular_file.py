"""Only regular files are opened, and nothing waits for others."""

import os

import pytest

from samebits.machine.regular_file import is_regular, open_regular, other_kind, read_regular


@pytest.fixture
def things(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    return tmp_path


def test_a_regular_file_is_read(things):
    assert read_regular(things / "file") == read_regular(things / "link") == b"content"
    assert read_regular(things / "file", most_bytes=3) == b"con"
    assert [is_regular(things / name) for name in ("file", "link", "fifo", "none")] == [True, False, False, False]
    assert other_kind(things / "file") == other_kind(things / "link") == other_kind(things / "none") == ""


@pytest.mark.parametrize(
    ("name", "kind"), [("fifo", "a FIFO"), ("zero", "a device"), ("folder", "a folder"), ("/dev/null", "a device")]
)
def test_what_is_none_is_named(things, name, kind):
    assert other_kind(things / name) == kind
    with pytest.raises(OSError, match=f"it is {kind}, not a regular file"):
        open_regular(things / name)


def test_links_are_followed_only_where_they_may_be(things):
    with pytest.raises(OSError, match="it is a link, not a regular file"):
        open_regular(things / "link", follow=False)
    with pytest.raises(FileNotFoundError):
        open_regular(things / "dangling")
