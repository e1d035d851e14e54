"""`_native.pyi`, which mypy and people read, says what the compiled module offers: names, arguments, types."""

import ast
import importlib.util
from pathlib import Path

import pytest

STUB = Path(__file__).parents[2] / "src" / "samebits" / "_native.pyi"


def offers(body, prefix=""):
    """Qualified names, each with what a caller must know: bases, signatures (several where overloaded), types."""
    found = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[prefix + node.name] = {f"class({', '.join(map(ast.unparse, node.bases))})"}
            found |= offers(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            node.body = [ast.Expr(ast.Constant(...))]
            found.setdefault(prefix + node.name, set()).add(ast.unparse(node))
        elif isinstance(node, ast.AnnAssign):
            found[prefix + ast.unparse(node.target)] = {ast.unparse(node.annotation)}
        elif isinstance(node, ast.Assign):
            found[prefix + ast.unparse(node.targets[0])] = {ast.unparse(node.value)}
    return found


def test_the_stub_says_what_the_compiled_module_offers():
    if importlib.util.find_spec("samebits._native") is None:
        pytest.skip("this installation has no compiled part")
    from nanobind.stubgen import StubGen

    from samebits import _native

    built = StubGen(_native, include_docstrings=False)
    built.put(_native)
    assert offers(ast.parse(STUB.read_text()).body) == offers(ast.parse(built.get()).body)


def test_a_stub_that_differs_in_a_name_an_argument_or_a_type_is_noticed():
    right = "class Group:\n    def wait(self, timeout_s: float = 1.0) -> int: ..."
    for wrong in (
        right.replace("wait", "await_all"),
        right.replace("timeout_s", "timeout"),
        right.replace("float", "int"),
        right.replace("1.0", "2.0"),
        right.replace("-> int", "-> None"),
        right + "\n    def more(self) -> None: ...",
    ):
        assert offers(ast.parse(wrong).body) != offers(ast.parse(right).body)
    with_docs = right.replace("...", '"""Wait."""')
    assert offers(ast.parse(with_docs).body) == offers(ast.parse(right).body)
