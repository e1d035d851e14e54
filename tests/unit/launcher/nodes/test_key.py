"""The run's key: where it comes from, what is refused, and that nobody sees it."""

import os
import shlex
import subprocess

import pytest

from samebits.errors import UsageError
from samebits.launcher.nodes import key as key_module
from samebits.launcher.nodes.key import MAKE_ONE, Key, KeySettings, RunKey, read_key
from tests.support.promises import promise

TEXT = "correct-horse-battery-staple-0123456789"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "samebits.key"
    path.touch(mode=0o600)
    path.write_text(f"{TEXT}\n")
    return path


def refusal(path):
    with pytest.raises(UsageError) as refused:
        read_key(str(path))
    return str(refused.value)


def test_a_file_that_only_its_owner_can_read_holds_the_key(file):
    assert read_key(str(file)) == Key(TEXT.encode())
    file.chmod(0o400)
    assert read_key(str(file)) == Key(TEXT.encode())


@promise(
    "shut",
    "A key file that others may read is refused; the key leaves the environment, and is in no argument; "
    "sealed with munge it is of no use to another user or job",
    also=[
        "test_the_key_leaves_the_environment_when_it_is_taken",
        "test_the_key_is_in_no_argument_and_not_readable_in_the_seal",
        "test_another_user_can_neither_open_a_seal_nor_offer_one",
        "test_another_job_is_refused",
    ],
)
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666])
def test_a_file_that_others_may_read_or_write_is_refused(file, mode):
    file.chmod(mode)
    assert refusal(file) == f"Others may read or write the key file {file} (mode {mode:04o}). Run `chmod 600 {file}`."


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(file):
    os.chown(file, 12345, -1)
    assert refusal(file).startswith(f"The owner of the key file {file} is another user.")


@pytest.mark.parametrize(
    ("content", "logged"),
    [(b"", "is empty"), (b" \n\n", "is empty"), (b"short", "has 5 characters"), (b"\xff" * 40, "is not plain text")],
)
def test_an_empty_or_short_key_is_refused(file, content, logged):
    file.write_bytes(content)
    assert logged in refusal(file)


def test_what_is_not_a_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name in ("fifo", "missing", "."):
        assert refusal(tmp_path / name).startswith(f"Cannot read the key file {tmp_path / name}: ")


def test_the_command_that_refusals_name_makes_a_key(tmp_path):
    subprocess.run(["sh", "-c", MAKE_ONE], cwd=tmp_path, check=True)
    assert len(read_key(str(tmp_path / "samebits.key")).secret) == 64


def test_the_key_leaves_the_environment_when_it_is_taken():
    environ = {"SAMEBITS_KEY": TEXT, "SAMEBITS_KEY_FILE": "/k", "HOME": "/root"}
    settings = KeySettings.take(None, environ)
    assert environ == {"SAMEBITS_KEY_FILE": "/k", "HOME": "/root"}
    assert (settings.text, settings.file) == (TEXT, "/k")
    assert KeySettings.take("/option", environ).file == "/option"


def test_a_key_is_not_shown():
    key = Key.of(TEXT, "x")
    for shown in (repr(key), str(key), f"{key}", repr(KeySettings.take(None, {"SAMEBITS_KEY": TEXT}))):
        assert TEXT not in shown


@pytest.fixture
def munge(monkeypatch):
    """Whether munge is installed here."""
    there = [True]
    monkeypatch.setattr(key_module, "has_munge", lambda: there[0])
    return there


def test_the_first_source_that_is_there_gives_the_key(file, munge):
    def found(settings, *, is_first=True):
        return settings.find(is_first=is_first, can_show=True)

    other = "b" * 32
    assert found(KeySettings(str(file), other, "7")) == RunKey(Key(TEXT.encode()))
    assert found(KeySettings("", other, "7"), is_first=False) == RunKey(Key(other.encode()))
    assert found(KeySettings(job="7"), is_first=False) == RunKey(None, "7")
    assert found(KeySettings(job="7")).job == "7" and found(KeySettings(job="7")).key is not None
    assert found(KeySettings()).is_new
    munge[0] = False
    assert found(KeySettings(job="7")).is_new


def test_a_node_without_a_key_learns_where_to_get_it(munge):
    with pytest.raises(UsageError, match=r"does not know the run's key\. Copy the line that node 0 printed\."):
        KeySettings().find(is_first=False, can_show=True)


def test_a_new_key_is_not_shown_to_a_log():
    with pytest.raises(UsageError, match="shown on a terminal only"):
        KeySettings().find(is_first=True, can_show=False)


@pytest.mark.parametrize(("text", "logged"), [("", "is empty"), ("\udcff" * 40, "is not plain text")])
def test_a_variable_that_holds_no_key_is_a_mistake(text, logged):
    with pytest.raises(UsageError, match=f"^The key in SAMEBITS_KEY {logged}"):
        KeySettings.take(None, {"SAMEBITS_KEY": text}).find(is_first=True, can_show=True)


def test_the_line_for_other_nodes_gives_the_key_to_its_environment_alone():
    key = Key.made()
    line = key.line_for_others(shlex.join(["sh", "-c", 'echo "$SAMEBITS_KEY"; tr "\\0" " " < /proc/$$/cmdline']))
    assert line.startswith(" ")
    logged, arguments = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout.split(
        "\n", 1
    )
    assert logged.encode() == key.secret
    assert logged not in arguments
