"""What torch does not promise is named in one place, `torch_private.py`, and every name exists in this torch."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from samebits.errors import EnvironmentFailure
from samebits.machine import torch_private, torch_versions
from tests.architecture.parsed import nodes
from tests.support.promises import promise

ROOT = Path(__file__).parents[2]
THE_PLACE = ROOT / "src" / "samebits" / "machine" / "torch_private.py"
WITNESS = ROOT / "src" / "samebits" / "witness"
"""Runs where samebits need not be installed, so it names what it needs itself; its tests use all of that."""
FILES = [
    *(one for one in (ROOT / "src").rglob("*.py") if WITNESS not in one.parents),
    *(ROOT / "benchmarks").glob("*.py"),
    *(ROOT / "examples").rglob("*.py"),
]
ROOTS = {"torch", "dist", "c10d", "distributed_c10d", "nn", "F", "optim", "cuda"}
NOT_TORCHS = {
    "_exit",
    "_getframe",
    "_xoptions",
    "_semlock",
    "_args_from_interpreter_flags",
    "_config",
    "_run_exitfuncs",
    "_Hash",
    "_native",
    "_inst",
    "_rand",
}
"""Private names of Python's own library; and ours."""
INTEGRATED = {
    "_reset_state",
    "_initial_global_step",
    "_add_dataloader",
    "_remove_dataloader",
    "_set_sync_gradients",
    "_globalstep_last_logged",
    "_total_loss_scalar",
    "_tr_loss",
}
"""Of Accelerate and transformers, whose versions an integration checks."""
LISTED = {name for each in torch_private.ATTRIBUTES for name in each.names.split()}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def chain(node):
    """`torch`, `_C`, `x` of torch._C.x; empty where the beginning is not a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def private_places(text):
    """Everything in a file that names a private module, function or class of torch."""
    for node in nodes(text):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            if any(map(is_private, [*node.module.split("."), *(name.name for name in node.names)])):
                yield ast.unparse(node)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if re.match(r"torch\b.*\._", name.name))
        elif isinstance(node, ast.Attribute):
            first, *rest = chain(node) or [""]
            if first in ROOTS and any(map(is_private, rest)):
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and re.search(r"\btorch(\.\w+)*\._[a-zA-Z]\w", str(node.value)):
            yield str(node.value)


@promise(
    "the-backend-samebits-of-torch-distributed",
    "Private names of torch stand in one file, and one that is gone raises at its first use only",
    also=["test_a_name_that_is_gone_is_said_with_what_it_is_for_and_raises_at_its_first_use_only"],
)
def test_private_places_of_torch_are_named_in_one_file_only():
    assert len(list(private_places(THE_PLACE.read_text()))) > 10
    found = {
        f"{path.relative_to(ROOT)}: {place}"
        for path in FILES
        if path != THE_PLACE
        for place in private_places(path.read_text())
    }
    assert found == set()


def defined_here(files):
    """Private names that classes and modules of samebits define."""
    for found in files:
        for node in found:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and chain(node)[:1] in (["self"], ["cls"])
            ):
                yield node.attr
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


def test_private_attributes_of_torchs_objects_are_listed_there():
    files = [nodes(path.read_text()) for path in FILES if "src" in path.parts]
    used = {
        node.attr
        for found in files
        for node in found
        if isinstance(node, ast.Attribute) and is_private(node.attr) and chain(node)[:1] not in (["self"], ["cls"])
    }
    assert used - set(defined_here(files)) - NOT_TORCHS - INTEGRATED - LISTED == set()


def test_every_private_name_is_there_on_this_torch():
    assert torch_private.missing(compiler=True) == []


def test_a_name_that_is_gone_is_said_with_what_it_is_for_and_raises_at_its_first_use_only(monkeypatch):
    gone = torch_private.PrivateName("torch._C", "_no_such_thing", "the trees of stages")
    monkeypatch.setitem(torch_private.PLACES, "pytree", gone)
    monkeypatch.setitem(torch_private.PLACES, "TorchDispatchMode", gone)
    told = [str(each) for each in torch_private.missing()]
    assert told == ["torch._C._no_such_thing (the trees of stages)"] * 2
    sentence = (
        r"torch \S+ has no torch\._C\._no_such_thing, which is needed for the trees of stages\. samebits was tested"
    )
    pytree = torch_private.pytree
    assert not isinstance(1, pytree)
    with pytest.raises(EnvironmentFailure, match=sentence):
        pytree.tree_leaves([1])

    class Mode(torch_private.TorchDispatchMode):
        pass

    with pytest.raises(EnvironmentFailure, match=sentence):
        Mode()
    with pytest.raises(AttributeError):
        torch_private.never_listed  # noqa: B018


def test_a_name_that_came_later_is_not_missed_before(monkeypatch):
    later = torch_private.PrivateName("torch._C", "_no_such_thing", "something", since=(99, 0))
    monkeypatch.setitem(torch_private.PLACES, "pytree", later)
    assert torch_private.missing() == []
    assert torch_private.if_there("pytree") is None


def test_the_oldest_tested_torch_is_the_lower_bound_the_constraints_have_a_tested_one_and_a_page_lists_all():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = ".".join(map(str, torch_versions.OLDEST))
    assert f"torch>={oldest}" in project["dependencies"]
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None and pinned[1] in torch_versions.TESTED
    rows = re.findall(r"^\| ([\d.]+) \|", (ROOT / "docs" / "versions.md").read_text(), re.MULTILINE)
    assert tuple(rows) == torch_versions.TESTED


@pytest.mark.parametrize(
    ("version", "minor", "old", "untested"),
    [
        ("2.13.0+cpu", (2, 13), False, False),
        ("2.10.1", (2, 10), True, False),
        ("2.99.0.dev20271001+cu140", (2, 99), False, True),
        ("3.0a0+git12ab", (3, 0), False, True),
        ("unknown", (0, 0), True, False),
    ],
)
def test_versions_are_compared_by_their_first_two_numbers(version, minor, old, untested):
    told = (
        torch_versions.minor(version),
        torch_versions.is_too_old(version),
        torch_versions.is_untested(version),
    )
    assert told == (minor, old, untested)
