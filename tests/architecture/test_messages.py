"""What people read is written as a native engineer would: patterns that our first texts stumbled on stay out."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "lockstep"
STUMBLES = {
    r"\bfor ever\b": "forever",
    r"\bback ends?\b": "backend, as torch spells it",
    r"\bway out\b": "the fix",
    r"\b(in|out)side of\b": "inside, outside",
    r"\bso many\b": "this many",
    r"\balike\b": "on every rank, the same",
    r"\bby nature\b": "by design",
    r"\bneeds no gradient\b": "does not require grad",
    r"\bpresent (lane|step|pass|value|batch)\b": "current",
    r"(?<!There) is no (?!longer|such)\w+": "is not a",
}
SAID_BY = {"print", "remark", "Line", "note", "problem", "say", "line"}
LONGEST = 700


def text_of(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) or "{}" for value in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def messages(text):
    """What exceptions and notices say: line and text of every literal in them."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in SAID_BY or name.endswith(("Error", "Broken", "Lost", "Misused", "Failed")):
            yield from ((node.lineno, said) for said in map(text_of, node.args) if said)


def stumbles(text):
    for line, said in messages(text):
        for pattern, better in STUMBLES.items():
            if found := re.search(pattern, said):
                yield f"{line}: {found.group(0)!r}: {better}"
        if len(said) > LONGEST:
            yield f"{line}: {len(said)} characters: at most {LONGEST}"


def test_messages_have_no_words_that_a_native_reader_stumbles_on():
    found = {str(path.relative_to(SOURCE)): list(stumbles(path.read_text())) for path in SOURCE.rglob("*.py")}
    assert {path: sentences for path, sentences in found.items() if sentences} == {}


def test_messages_that_ask_for_something_end_their_sentences():
    open_ended = [
        f"{path.name}:{line}: {said[-40:]}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UsageError" and len(node.args) == 1
        for line, said in [(node.lineno, text_of(node.args[0]))]
        if said and not said.endswith((".", "{}", "}", ")", "\n"))
    ]
    assert open_ended == []


@pytest.mark.parametrize(
    "said", ["It waits for ever.", "The back end is gone.", "x is no regular file.", "Draw on every rank alike."]
)
def test_a_pattern_is_noticed(said):
    assert list(stumbles(f"raise UsageError({said!r})"))
    assert not list(stumbles("raise UsageError('There is no file x.')"))
