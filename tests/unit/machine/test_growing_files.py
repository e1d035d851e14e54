"""Files that grow are read on, and anew where they are others."""

import os
from pathlib import Path

import pytest

from samebits.machine import growing_file
from samebits.machine.growing_file import GrowingFile


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "lines"
    made.write_bytes(b"1\n2\n3")
    return made


def test_lines_are_read_once_and_half_a_line_when_it_is_whole(path):
    file = GrowingFile(path)
    assert file.new() == (b"1\n2\n", True)
    assert file.new() == (b"", False)
    with path.open("ab") as more:
        more.write(b"3\n4\n5")
    assert file.new() == (b"33\n4\n", False)


def test_of_a_long_file_that_was_read_nothing_is_read_again(path):
    path.write_bytes(b"line\n" * 400_000)
    file = GrowingFile(path)
    assert len(file.new()[0]) == 2_000_000
    with Path("/proc/self/io").open() as counted:
        before = int(counted.readline().split()[1])
        assert file.new() == (b"", False)
        counted.seek(0)
        assert int(counted.readline().split()[1]) - before < 50_000


@pytest.mark.parametrize("how", ["cut", "replaced", "same inode, longer", "rewritten in place"])
def test_another_file_is_read_anew(path, how):
    file, other = GrowingFile(path), path.with_name("other")
    file.new()
    if how == "cut":
        os.truncate(path, 2)
        assert file.new() == (b"1\n", True)
    elif how == "replaced":
        other.write_bytes(b"1\n2\n3\n")
        other.rename(path)
        assert file.new() == (b"1\n2\n3\n", True)
    elif how == "same inode, longer":
        path.write_bytes(b"8\n9\n10\n")
        assert file.new() == (b"8\n9\n10\n", True)
    else:
        path.write_bytes(b"7\n2\n")
        assert file.new() == (b"7\n2\n", True)


@pytest.mark.parametrize("what", ["nothing", "a link", "a FIFO", "a folder"])
def test_what_is_no_regular_file_has_no_lines(tmp_path, path, what):
    place = tmp_path / "place"
    if what == "a link":
        place.symlink_to(path)
    elif what == "a FIFO":
        os.mkfifo(place)
    elif what == "a folder":
        place.mkdir()
    assert GrowingFile(place).new() == (b"", False)


def test_what_vanished_stays_read_until_it_is_back(path):
    file, aside = GrowingFile(path), path.with_name("aside")
    file.new()
    path.rename(aside)
    assert file.new() == (b"", False)
    aside.write_bytes(b"1\n2\n3\n")
    aside.rename(path)
    assert file.new() == (b"3\n", False)


def test_a_long_piece_comes_in_parts_or_is_spread(path, monkeypatch):
    monkeypatch.setattr(growing_file, "MOST_BYTES", 400)
    monkeypatch.setattr(growing_file, "PART_BYTES", 40)
    lines = b"".join(b"%d\n" % number for number in range(1000))
    path.write_bytes(lines)
    file, parts = GrowingFile(path), []
    while part := file.new()[0]:
        parts.append(part)
    assert (b"".join(parts), file.is_whole) == (lines, True)
    spread = GrowingFile(path, spreads=True)
    found = spread.new()[0]
    assert set(found.splitlines()) < set(lines.splitlines())
    assert found.endswith(b"999\n")
    assert not spread.is_whole
    assert spread.new() == (b"", False)


def test_a_line_that_is_too_long_is_passed_over(path, monkeypatch):
    monkeypatch.setattr(growing_file, "MOST_BYTES", 400)
    path.write_bytes(b"x" * 900 + b"\n1\n")
    file = GrowingFile(path)
    assert [file.new()[0] for _ in range(4)] == [b"", b"", b"x" * 100 + b"\n1\n", b""]


class CutWhileRead(GrowingFile):
    """Somebody cuts off the file and writes other lines, just when its lines were read."""

    def _lines(self, file, size):
        lines = super()._lines(file, size)
        self.path.write_bytes(b"7\n8\n9\n")
        return lines


def test_a_file_that_is_written_again_while_it_is_read_is_read_anew(path):
    file = CutWhileRead(path)
    assert file.new() == (b"1\n2\n", True)
    assert file.new() == (b"7\n8\n9\n", True)
