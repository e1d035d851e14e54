"""Whether a script calls `lockstep.init` is read from its source, and from the files that it imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.launcher.script_source import file_calls_init, text_calls_init


@pytest.mark.parametrize(
    "source",
    [
        "import lockstep\nrun = lockstep.init(seed=1)",
        "import lockstep as ls\ndef main():\n    with ls.init() as run: pass",
        "from lockstep import init as start\nstart()",
        "from lockstep import *\nrun = init()",
        "import lockstep.testing\nlockstep.init()",
        "def main():\n    import lockstep\n    if True:\n        return lockstep.init()",
    ],
)
def test_a_call_of_init_is_seen(source: str) -> None:
    assert text_calls_init(source)


@pytest.mark.parametrize(
    "source",
    [
        "# lockstep.init() gives equal bits",
        '"""Not for lockstep.init."""\nimport torch',
        "import lockstep\nprint(lockstep.__version__)",
        "import lockstep.torch_backend, wandb\nwandb.init()",
        "from mine import lockstep\nlockstep.train()",
        "from lockstep import spawn\nspawn(print)",
        "this is not Python: lockstep.init(",
        "\0lockstep.init()",
    ],
)
def test_a_script_that_only_mentions_it_is_plain(source: str) -> None:
    assert not text_calls_init(source)


@pytest.mark.parametrize(
    ("script", "module"),
    [
        ("import mine.training", "mine/training.py"),
        ("from mine import training", "mine/training.py"),
        ("from mine.training import main", "mine/training.py"),
        ("import mine", "mine/__init__.py"),
        ("def main():\n    from training import go", "training.py"),
        ("import first", "second.py"),
        ("import importlib\nimportlib.import_module('mine.training').go()", "mine/training.py"),
    ],
)
def test_the_call_may_be_in_a_module_that_the_script_imports(tmp_path: Path, script: str, module: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").touch()
    (tmp_path / "first.py").write_text("import second")
    (tmp_path / "second.py").write_text("import first")
    (tmp_path / "script.py").write_text(script)
    assert not file_calls_init(tmp_path / "script.py", tmp_path)
    (tmp_path / module).write_text("import lockstep\n\ndef go():\n    return lockstep.init()\n")
    assert file_calls_init(tmp_path / "script.py", tmp_path)


def test_relative_imports_are_followed(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    (package / "parts").mkdir(parents=True)
    (package / "parts/main.py").write_text("from ..training import go\n")
    (package / "training.py").write_text("import lockstep\n\ndef go():\n    return lockstep.init()\n")
    assert file_calls_init(package / "parts/main.py", tmp_path)


def test_libraries_and_lockstep_itself_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch, lockstep, pytest, nowhere.at.all, os.path\nfrom . import x\n")
    assert not file_calls_init(tmp_path / "script.py", tmp_path)
