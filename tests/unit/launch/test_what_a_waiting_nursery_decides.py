"""What a nursery that waits decides: which runs fit, when it ends, what an order is; and the folder of its socket."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import UsageError
from lockstep.launch.nursery.spare import Spare
from lockstep.launch.warm.life import LEAST_BYTES, Seen, why_end
from lockstep.launch.warm.order import Order, parse_order
from lockstep.launch.warm.place import make_folder, open_folder, places, socket_name, sockets
from lockstep.launch.warm.stamps import changed_since, first_changed, loaded_files, stamps_of
from lockstep.launch.warm.variables import Reads, hindrance, seen_reads
from lockstep.launch.warm.waiting import other_surroundings
from lockstep.launch.warm.wish import kept_for, parse_time
from lockstep.machine import packets
from lockstep.machine.inherited import inherited, mask_of, umask_of

HERE = {"HOME": "/home/a", "PATH": "/bin", "LR": "0.1"}


@pytest.mark.parametrize(
    "name",
    [
        "OMP_NUM_THREADS",
        "LD_PRELOAD",
        "PYTHONPATH",
        "TORCH_LOGS",
        "LC_ALL",
        "TZ",
        "MALLOC_ARENA_MAX",
        "CUDA_VISIBLE_DEVICES",
        "MKL_CBWR",
        "KMP_AFFINITY",
        "SLURM_STEP_ID",
    ],
)
def test_a_variable_that_a_library_reads_while_it_loads_must_be_the_same(name: str) -> None:
    for wanted in ({**HERE, name: "1"}, HERE):
        given = {**HERE, name: "2"}
        assert hindrance(given, wanted, Reads()) == f"the variable {name} has changed"


def test_a_variable_that_nothing_has_read_may_change_and_one_that_an_import_read_may_not() -> None:
    for wanted in ({**HERE, "LR": "0.2"}, {**HERE, "NEW": "1"}, {"HOME": "/home/a", "PATH": "/bin"}):
        assert hindrance(HERE, wanted, Reads()) == ""
    assert hindrance(HERE, {**HERE, "LR": "0.2"}, Reads(frozenset({"LR"}))) == "the variable LR has changed"


def test_where_an_import_read_everything_only_what_terminals_set_may_change() -> None:
    reads = Reads(everything=True)
    assert hindrance(HERE, {**HERE, "TERM": "xterm", "SHLVL": "3", "_": "/bin/x", "SSH_TTY": "/dev/pts/1"}, reads) == ""
    assert hindrance(HERE, {**HERE, "NEW": "1"}, reads) == "the variable NEW has changed"


def test_reads_are_seen_and_the_environment_is_plain_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("READ_BY_INDEX", "1")
    monkeypatch.setenv("NOT_READ", "1")
    with seen_reads(()) as told:
        assert os.environ["READ_BY_INDEX"] == "1"
        assert os.environ.get("READ_BY_GET") is None
        assert "READ_BY_IN" not in os.environ
        assert os.getenv("READ_BY_GETENV") is None
        os.environ["NOT_READ"] = "2"
    assert not told[0].everything
    assert {"READ_BY_INDEX", "READ_BY_GET", "READ_BY_IN", "READ_BY_GETENV"} <= told[0].names
    assert "NOT_READ" not in told[0].names
    assert type(os.environ._data) is dict
    assert os.environ["NOT_READ"] == "2"


def test_who_reads_all_variables_is_noticed_and_who_ran_before_anybody_watched() -> None:
    with seen_reads(()) as told:
        assert dict(os.environ)
    assert told[0].everything
    with seen_reads({"json", "lockstep.errors", "_distutils_hack"}) as told:
        pass
    assert not told[0].everything
    with seen_reads({"sitecustomize"}) as told:
        pass
    assert told[0].everything


def test_a_file_that_changes_is_noticed_whatever_its_time_says(tmp_path: Path) -> None:
    file, folder = tmp_path / "a.py", tmp_path / "path"
    file.write_text("one")
    folder.mkdir()
    stamps = stamps_of([str(file), str(folder), str(tmp_path / "none.pth")])
    assert first_changed(stamps) == ""
    before = file.stat()
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert first_changed(stamps) == str(file)
    stamps = stamps_of(stamps)
    (folder / "new_package").mkdir()
    assert first_changed(stamps) == str(folder)
    stamps = stamps_of(stamps)
    (tmp_path / "none.pth").touch()
    assert first_changed(stamps) == str(tmp_path / "none.pth")
    assert changed_since(stamps_of([str(file)]), before.st_mtime_ns - 1) == str(file)
    assert changed_since(stamps_of([str(file)]), file.stat().st_mtime_ns) == ""


def test_what_this_process_has_loaded_is_found() -> None:
    found = loaded_files()
    assert {json.__file__, __file__, sys.executable} <= found
    assert any(re.search(r"/libc[.-]", path) for path in found), "mapped libraries"


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (Seen(10.0, True, "", 8 << 30), ""),
        (Seen(10.0, True, "", 0), ""),
        (Seen(600.0, True, "", 8 << 30), "nobody used it"),
        (Seen(1.0, False, "", 8 << 30), "its socket was removed"),
        (Seen(1.0, True, "/x/torch/__init__.py", 8 << 30), "/x/torch/__init__.py has changed"),
        (Seen(1.0, True, "", LEAST_BYTES - 1), "memory is short"),
    ],
)
def test_it_ends_when_it_is_of_no_use_or_in_the_way(seen: Seen, why: str) -> None:
    assert why_end(seen, 600.0) == why


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("10m", 600.0), ("10min", 600.0), ("2h", 7200.0), ("", 0.0), ("off", 0.0)]
)
def test_the_variable_says_how_long_a_run_keeps_one_but_not_where_ci_is_set(text: str, seconds: float) -> None:
    assert kept_for({"LOCKSTEP_WARM": text}) == seconds
    assert kept_for({"LOCKSTEP_WARM": text, "CI": "false"}) == seconds
    assert kept_for({"LOCKSTEP_WARM": text, "CI": "true"}) == 0.0
    assert kept_for({}) == 0.0


@pytest.mark.parametrize("text", ["0", "0m", "-1s", "ten", "10", "1e9h", "10 d"])
def test_what_is_no_time_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="must be a time, but is"):
        parse_time(text, "--for")
    with pytest.raises(UsageError, match="LOCKSTEP_WARM must be a time") as raised:
        kept_for({"LOCKSTEP_WARM": text, "CI": "1"})
    assert raised.value.fix == "Write 90s, 10m, 2h or off."


GOOD: dict[str, Any] = {
    "same": {}, "variables": {"A": "1"}, "argv": ["x"], "path": ["/a"], "command": ["python"], "targets": [0, 1, 2, 7],
}  # fmt: skip


def test_an_order_is_read() -> None:
    assert parse_order([GOOD], 6) == Order(**GOOD)


@pytest.mark.parametrize(
    ("changed", "descriptors"),
    [
        ({}, 5), ({"targets": [0, 1, 7]}, 5), ({"targets": [0, 1, 2, 2]}, 6), ({"targets": [0, 1, 2, -1]}, 6),
        ({"targets": [0, 1, 2, 1 << 40]}, 6), ({"targets": [False, 1, 2]}, 5), ({"targets": "012"}, 5),
        ({"variables": {"A": 1}}, 6), ({"variables": [["A", "1"]]}, 6), ({"variables": {"A\0": "1"}}, 6),
        ({"argv": [None]}, 6), ({"argv": "x"}, 6), ({"path": {}}, 6), ({"same": []}, 6), ({"more": 1}, 6),
    ],
)  # fmt: skip
def test_what_is_no_order_is_refused(changed: dict[str, Any], descriptors: int) -> None:
    with pytest.raises(packets.NotUnderstood):
        parse_order([{**GOOD, **changed}], descriptors)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), JSON), st.integers(0, 8))
def test_any_json_is_an_order_or_refused(changed: dict[str, Any], descriptors: int) -> None:
    with contextlib.suppress(packets.NotUnderstood):
        parse_order([{**GOOD, **changed}], descriptors)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(data)
        theirs.close()
        with contextlib.suppress(packets.NotUnderstood):
            packets.receive(ours)


@pytest.mark.parametrize("data", [b"[", b"{}", b"[1]", b"\xff", b"[" * 100_000])
def test_descriptors_of_a_message_that_is_refused_are_closed(data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe2(os.O_NONBLOCK)
    with ours, theirs, os.fdopen(reader, "rb", 0) as pipe:
        socket.send_fds(theirs, [data], [writer] * 3)
        os.close(writer)
        assert pipe.read() is None, "the message holds the pipe's other end"
        with pytest.raises(packets.NotUnderstood):
            packets.receive(ours)
        assert pipe.read() == b"", "nobody holds it"


def test_the_folder_is_the_users_own_and_another_one_is_not_used(tmp_path: Path) -> None:
    variables = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": "/none", "XDG_CACHE_HOME": ""}
    assert places(variables, 7) == [
        f"{tmp_path}/lockstep-warm",
        "/run/user/7/lockstep-warm",
        "/none/.cache/lockstep-warm",
    ]
    found = make_folder(variables)
    assert found is not None
    folder, path = found
    assert Path(path).stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.bind(f"/proc/self/fd/{folder}/{socket_name()}")
        (Path(path) / "another-file").touch()
        assert sockets(folder) == [socket_name()]
    os.close(folder)
    Path(path).chmod(0o750)
    assert open_folder(path) is None
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert open_folder(str(link)) is None
    assert open_folder(str(tmp_path / "nothing")) is None


def test_another_user_at_the_other_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert packets.peer_of(ours) == os.getpid()
        user = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        with pytest.raises(PermissionError, match="another user"):
            packets.peer_of(ours)


def test_what_a_process_was_given_is_read_and_compared() -> None:
    ours = inherited(os.getpid())
    assert ours["Uid"].split()[0] == str(os.getuid())
    assert {"limits", "cgroup", "namespace net", "Cpus_allowed", "nice", "root"} <= ours.keys()
    assert other_surroundings(ours, dict(ours)) == ""
    assert other_surroundings(ours, {**ours, "nice": "19"}) == "nice is not the same"
    assert other_surroundings(ours, {}) != ""
    mask = os.umask(0o27)
    os.umask(mask)
    assert umask_of(os.getpid()) == mask
    assert {13, 25} <= mask_of(os.getpid(), "SigIgn"), "Python ignores SIGPIPE and SIGXFSZ"


def test_a_spare_process_becomes_only_the_nursery_that_its_imports_are_those_of() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        made = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        spare = Spare(77, ours, ("torch", "torch._dynamo"), made)
        assert spare.become(["x"], {**made, "OMP_NUM_THREADS": "2"}, ("torch",), 0) == 0
        assert spare.become(["x"], made, ("torch", "lockstep.run.start"), 0) == 0
        assert spare.become(["x"], made, (), 0) == 0, "fresh interpreters"
        assert spare.become(["x"], {**made, "A": "1"}, ("torch",), 0) == 77
        word, told, descriptors = packets.receive(theirs)
        assert (word, told[0], told[1]["A"]) == ("be", ["x"], "1")
        os.close(descriptors[0])
        theirs.close()
        assert spare.become(["x"], made, ("torch",), 0) == 0, "it was killed"
