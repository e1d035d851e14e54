"""The house keeps its shape: layers, no torch outside the ranks, a small facade, files of one noun."""

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import samebits
from tests import guarantees
from tests.architecture.parsed import nodes

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "samebits"
OUTSIDE = ("errors", "notices", "machine", "protocol", "launcher", "verify", "bench", "cli")
FORBIDDEN_NAMES = {"utils", "helpers", "common", "core", "manager", "misc", "base", "tools", "api"}

BLOCKER = """
import importlib.abc, importlib, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("torch", "numpy", "safetensors"):
            raise ImportError(f"{name} must not be imported outside the ranks")
sys.meta_path.insert(0, Blocker())
"""


def modules_of(package):
    if not (SOURCE / package).is_dir():
        return [f"samebits.{package}"]
    found = pkgutil.walk_packages([str(SOURCE / package)], f"samebits.{package}.")
    return [f"samebits.{package}", *(module.name for module in found)]


@pytest.mark.ranks
def test_everything_outside_of_the_ranks_imports_with_torch_blocked():
    modules = [module for package in OUTSIDE for module in modules_of(package)]
    assert len(modules) > 40
    program = BLOCKER + "\n".join(f"importlib.import_module({module!r})" for module in modules)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.ranks
def test_help_works_where_there_is_no_torch():
    for arguments in (
        ["--help"],
        ["run", "--help"],
        ["verify", "--help"],
        ["doctor", "--help"],
        ["checkpoint", "--help"],
        ["checkpoint", "ls"],
        ["--version"],
    ):
        program = f"{BLOCKER}\nsys.argv = ['samebits', *{arguments!r}]\nfrom samebits.cli.main import main\nmain()"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout


@pytest.mark.ranks
def test_a_launcher_of_one_node_imports_neither_tls_nor_an_event_loop():
    program = "import sys, samebits.launcher.launcher; print(*sorted({'asyncio', 'ssl'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n", "they cost every start of every run 20 ms"


def test_the_facade_is_small_and_complete():
    assert len(samebits.__all__) <= 25
    assert sorted(samebits.__all__) == samebits.__all__
    assert all(getattr(samebits, name) is not None for name in samebits.__all__)


def test_files_and_folders_have_names_that_say_something():
    names = {part for path in SOURCE.rglob("*.py") for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert not names & FORBIDDEN_NAMES


def functions():
    for path in SOURCE.rglob("*.py"):
        for node in nodes(path.read_text()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def test_no_two_files_of_tests_have_the_same_name():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == [], "pytest imports them by their name alone"


def test_no_file_has_more_than_500_lines_and_no_function_more_than_60():
    long_files = {path.name: n for path in SOURCE.rglob("*.py") if (n := len(path.read_text().splitlines())) > 500}
    long_functions = {
        f"{path.name}:{node.name}": n for path, node in functions() if (n := node.end_lineno - node.lineno + 1) > 60
    }
    assert (long_files, long_functions) == ({}, {})


def test_every_module_says_what_it_is():
    silent = [path for path in SOURCE.rglob("*.py") if not ast.get_docstring(nodes(path.read_text())[0])]
    assert silent == []


def test_the_page_of_guarantees_is_made_from_the_tests():
    text = guarantees.PAGE.read_text()
    assert guarantees.page(text) == text, "python -m tests.guarantees"
    sentences = [one.sentence for one in guarantees.promises()]
    assert len(sentences) == len(set(sentences)), "say it at one test, and name the others in also="


def test_each_promise_names_the_tests_that_check_it_and_no_neighbours():
    """A sentence that is cut in two leaves each part its own tests."""
    named = [one.tests for one in guarantees.promises()]
    assert [tests for tests in named if len(tests) != len(set(tests))] == []
    several = [frozenset(tests) for tests in named if len(tests) > 1]
    assert [sorted(tests) for tests in set(several) if several.count(tests) > 1] == []


def test_a_promise_is_short_and_names_tests_that_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(guarantees, "ROOT", tmp_path)
    file = tmp_path / "tests" / "test_it.py"
    file.parent.mkdir()
    file.write_text("@promise('a', 'It works', also=['test_other'])\ndef test_it(): ...\n")
    with pytest.raises(ValueError, match=r"names tests that are not there, or twice: \['test_other'\]"):
        guarantees.promises()
    file.write_text(f"@promise('a', '{'x' * 201}')\ndef test_it(): ...\n")
    with pytest.raises(ValueError, match="201 characters, at most 200"):
        guarantees.promises()
    file.write_text("@promise('a', 'It works')\ndef test_it(): ...\n")
    with pytest.raises(ValueError, match=r"sections of the page and of tests differ: \['a'\]"):
        guarantees.page("")
    old = "<!-- promises: a -->\n<!-- end -->"
    assert "| It works | `tests/test_it.py` |" in guarantees.page(old)


@pytest.mark.parametrize("name", ["guarantees.md", "from-the-notes.md"])
def test_every_promise_of_a_page_names_a_test_that_exists(name):
    page = (ROOT / "docs" / name).read_text()
    named = {word.strip("`") for word in page.split() if word.startswith("`tests/")}
    assert len(named) > 10
    for name in named:
        file, _, function = name.partition("::")
        assert (ROOT / file).exists(), name
        assert not function or f"def {function}(" in (ROOT / file).read_text(), name


def test_every_example_that_a_page_names_exists():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        named = set(re.findall(r"(?:examples|docs)/[\w/.-]+\.(?:py|md|png)", page.read_text()))
        assert [name for name in named if not (ROOT / name).exists()] == [], page.name


def classes():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for node in nodes(text):
            if isinstance(node, ast.ClassDef):
                yield path, text.splitlines(), node


def code_lines(lines, node):
    """Lines of a class without docstrings, comments and empty lines."""
    texts = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str):
            texts |= set(range(part.lineno, part.end_lineno + 1))
    numbered = enumerate(lines[node.lineno - 1 : node.end_lineno], node.lineno)
    return sum(number not in texts and bool(line.split("#")[0].strip()) for number, line in numbered)


def test_no_class_has_more_than_200_lines_of_code():
    long = {f"{path.name}:{node.name}": n for path, lines, node in classes() if (n := code_lines(lines, node)) > 200}
    assert long == {}


def test_no_class_calls_a_method_past_its_parent():
    past = [
        f"{path.name}:{call.lineno}"
        for path, _, node in classes()
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if isinstance(call.func.value, ast.Name) and call.func.value.id[0].isupper()
        if call.args and isinstance(call.args[0], ast.Name) and call.args[0].id == "self"
        if call.func.attr != "__init__"
    ]
    assert past == []


def test_a_strategy_around_another_one_leaves_nothing_to_its_own_defaults():
    from samebits.rank.strategy.contract import Strategy
    from samebits.rank.strategy.delegating import DelegatingStrategy

    offered = {name for name, value in vars(Strategy).items() if callable(value) or isinstance(value, property)}
    assert {name for name in offered if not name.startswith("_")} - set(vars(DelegatingStrategy)) == set()


MAKERS = {
    *(
        "empty",
        "empty_strided",
        "empty_permuted",
        "zeros",
        "ones",
        "full",
        "eye",
        "arange",
        "linspace",
        "logspace",
        "range",
    ),
    *("tensor", "as_tensor", "asarray", "scalar_tensor", "rand", "randn", "randint", "randperm"),
    *("sparse_coo_tensor", "sparse_csr_tensor", "sparse_compressed_tensor", "tril_indices", "triu_indices"),
}
"""Functions of torch whose result lies on the default device unless they are told where."""


def makes_a_tensor_anywhere(node):
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).removeprefix("torch.") in MAKERS
        and ast.unparse(node.func).startswith("torch.")
        and not any(word.arg in {"device", None} for word in node.keywords)
    )


def test_every_tensor_of_ours_names_its_device_whatever_the_script_made_the_default():
    found = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in SOURCE.rglob("*.py")
        for node in nodes(file.read_text())
        if makes_a_tensor_anywhere(node)
    ]
    assert not found, "torch.set_default_device moves these"
