"""Promises of docs/guarantees.md, each said where the test stands that checks it; `tests.guarantees` makes the page's tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

MOST_CHARACTERS = 200
"""Of a promise: who reads the page looks for one thing."""
Test = TypeVar("Test", bound=Callable[..., object])


def promise(section: str, sentence: str, *, also: Sequence[str] = ()) -> Callable[[Test], Test]:
    """Say what a test checks, for the page; changes nothing of it. Several promises of a test are several decorators.

    Args:
        section: the name of the page's table.
        sentence: without a full stop.
        also: names of other tests that check it, or of files of tests: `test_prove.py`. A name that
            comes twice has its file's before it: `test_prove.py::test_it`.
    """
    assert section
    assert sentence
    assert not isinstance(also, str)
    return lambda test: test
