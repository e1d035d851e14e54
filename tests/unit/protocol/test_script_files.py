"""The user's files are those below the folder of the script that are not installed."""

import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from samebits.protocol import script_files
from samebits.protocol.script_files import PACKAGE, ScriptFiles, is_library, running_script


@pytest.mark.parametrize(
    "file",
    [
        "<string>",
        f"{PACKAGE}rank/run/run.py",
        f"{sysconfig.get_path('stdlib')}/json/decoder.py",
        "/home/me/project/.venv/lib/python3.12/site-packages/tqdm/std.py",
        "/usr/lib/python3/dist-packages/numpy/__init__.py",
    ],
)
def test_what_is_installed_is_a_librarys_even_below_the_folder_of_the_script(file):
    assert is_library(file)
    assert not ScriptFiles.below("/").has(file)


@pytest.mark.parametrize(
    ("file", "is_users"),
    [
        ("/home/me/project/train.py", True),
        ("/home/me/project/data/read.py", True),
        ("/home/me/project2/train.py", False),
        ("/home/me/editable/library/nn.py", False),
    ],
)
def test_the_users_files_lie_below_the_folder_of_the_script(file, is_users):
    assert ScriptFiles.beside("/home/me/project/train.py").has(file) is is_users


def test_a_script_that_is_named_through_a_link_has_its_files_under_both_names(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    users = ScriptFiles.beside(tmp_path / "link" / "train.py")
    assert users.has(str(tmp_path / "real" / "model.py"))
    assert users.has(str(tmp_path / "link" / "train.py"))


def test_the_line_to_show_is_the_users_else_one_that_is_no_librarys():
    users, library = ScriptFiles.beside("/home/me/train.py"), "/opt/lib/python3/site-packages/torch/nn.py"
    assert users.innermost([library, "/opt/editable/a.py", "/home/me/data.py", "/home/me/train.py"]) == 2
    assert users.innermost([library, "/opt/editable/a.py", "/opt/editable/b.py"]) == 1
    assert users.innermost([library]) is None


@pytest.mark.parametrize(
    ("file", "package", "folder"),
    [
        ("/home/me/project/train.py", None, "/home/me/project"),
        ("/home/me/project/tools/train.py", "tools", "/home/me/project/tools"),
        ("/home/me/project/own/tools/train.py", "own.tools", "/home/me/project/own"),
        (None, None, str(Path.cwd())),
        ("/opt/venv/lib/python3.11/site-packages/pytest/__main__.py", "pytest", str(Path.cwd())),
        (f"{sys.prefix}/bin/accelerate", None, str(Path.cwd())),
    ],
)
def test_a_module_belongs_to_its_package_and_what_has_no_script_to_the_working_directory(
    monkeypatch, file, package, folder
):
    main = ModuleType("__main__")
    main.__dict__.update(__file__=file, __package__=package)
    monkeypatch.setitem(sys.modules, "__main__", main)
    script_files._running.cache_clear()  # an earlier test had another working directory
    assert running_script().folders[0] == f"{folder}/"
