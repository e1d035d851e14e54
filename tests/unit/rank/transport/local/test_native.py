"""Whether the compiled part is here is a question with a sentence for an answer."""

import importlib.util
import sys

import pytest

from samebits.rank.transport.local import native


def test_where_the_compiled_part_is_built_it_is_available_and_there_is_no_reason():
    if importlib.util.find_spec("samebits._native") is None:
        pytest.skip("this installation has no compiled part")
    assert native.available()
    assert native.why_not() == ""


def test_without_the_compiled_part_the_reason_names_the_compiler(monkeypatch):
    monkeypatch.setitem(sys.modules, "samebits._native", None)
    monkeypatch.delattr("samebits._native", raising=False)
    fresh = importlib.util.module_from_spec(importlib.util.find_spec("samebits.rank.transport.local.native"))
    fresh.__spec__.loader.exec_module(fresh)
    assert not fresh.available()
    assert "C++20 compiler" in fresh.why_not()


def test_a_compiled_part_that_does_not_load_says_what_the_loader_said():
    error = ImportError("libstdc++.so.6: version `GLIBCXX_3.4.30' not found", name="samebits._native")
    assert native.reason(error, "linux").endswith("GLIBCXX_3.4.30' not found")


def test_another_module_that_is_missing_is_not_taken_for_a_missing_compiler():
    assert "compiler" not in native.reason(ModuleNotFoundError("No module named 'x'", name="x"), "linux")


def test_another_system_is_named():
    assert "darwin" in native.reason(ModuleNotFoundError(name="samebits._native"), "darwin")
