"""What a killed compilation leaves in torch's cache is removed, unless somebody is still writing it."""

import fcntl
import getpass
import os

from torch._inductor.runtime import cache_dir_utils

from samebits.machine.leftovers import compiler_cache, remove_half_written


def library(cache, name, mode):
    file = cache / name[1:3] / f"{name}.main.so"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\x7fELF")
    file.chmod(mode)
    return file


def test_only_what_is_not_whole_and_not_being_written_goes(tmp_path):
    locks = tmp_path / "locks"
    locks.mkdir()
    whole, half = library(tmp_path, "cwhole", 0o755), library(tmp_path, "chalf", 0o644)
    written = library(tmp_path, "cwritten", 0o644)
    with (locks / "cwritten.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert remove_half_written(tmp_path) == [half]
        assert (whole.exists(), half.exists(), written.exists()) == (True, False, True)
    assert remove_half_written(tmp_path) == [written]
    assert remove_half_written(tmp_path / "none") == []


def test_a_lock_that_is_a_fifo_is_not_waited_for(tmp_path):
    (tmp_path / "locks").mkdir()
    half = library(tmp_path, "chalf", 0o644)
    os.mkfifo(tmp_path / "locks" / "chalf.lock")
    assert remove_half_written(tmp_path) == []
    assert half.exists()


def test_the_cache_is_where_torch_has_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert compiler_cache() == tmp_path
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    for user in ("me", "DOMAIN\\me"):
        monkeypatch.setattr(getpass, "getuser", lambda user=user: user)
        assert str(compiler_cache()) == cache_dir_utils.default_cache_dir()
