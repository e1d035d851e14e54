"""Whether a script calls `samebits.init` is read from its source, and from the files that it imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.launcher.script_source import file_calls_init, file_has_lanes, text_calls_init


@pytest.mark.parametrize(
    "source",
    [
        "import samebits\nrun = samebits.init(seed=1)",
        "import samebits as ls\ndef main():\n    with ls.init() as run: pass",
        "from samebits import init as start\nstart()",
        "from samebits import *\nrun = init()",
        "import samebits.testing\nsamebits.init()",
        "def main():\n    import samebits\n    if True:\n        return samebits.init()",
    ],
)
def test_a_call_of_init_is_seen(source: str) -> None:
    assert text_calls_init(source)


@pytest.mark.parametrize(
    "source",
    [
        "# samebits.init() gives equal bits",
        '"""Not for samebits.init."""\nimport torch',
        "import samebits\nprint(samebits.__version__)",
        "import samebits.torch_backend, wandb\nwandb.init()",
        "from mine import samebits\nsamebits.train()",
        "from samebits import spawn\nspawn(print)",
        "this is not Python: samebits.init(",
        "\0samebits.init()",
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
    (tmp_path / module).write_text("import samebits\n\ndef go():\n    return samebits.init()\n")
    assert file_calls_init(tmp_path / "script.py", tmp_path)


def test_relative_imports_are_followed(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    (package / "parts").mkdir(parents=True)
    (package / "parts/main.py").write_text("from ..training import go\n")
    (package / "training.py").write_text("import samebits\n\ndef go():\n    return samebits.init()\n")
    assert file_calls_init(package / "parts/main.py", tmp_path)


def test_libraries_and_samebits_itself_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch, samebits, pytest, nowhere.at.all, os.path\nfrom . import x\n")
    assert not file_calls_init(tmp_path / "script.py", tmp_path)


@pytest.mark.parametrize(
    ("source", "has_lanes"),
    [
        ("from samebits.integrations.accelerate import Accelerator", True),
        ("import samebits.integrations.transformers as ours", True),
        ("from accelerate import Accelerator  # not samebits.integrations", False),
    ],
)
def test_a_script_with_an_integration_has_lanes(tmp_path: Path, source: str, has_lanes: bool) -> None:
    # Where samebits is installed its own files are not looked through, as in a folder without it.
    (tmp_path / "train.py").write_text(source)
    assert file_has_lanes(tmp_path / "train.py", tmp_path) is has_lanes
    assert not file_calls_init(tmp_path / "train.py", tmp_path) or has_lanes
