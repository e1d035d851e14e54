"""What people read is written as a native engineer would: patterns that our first texts stumbled on stay out."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.parsed import nodes

SOURCE = Path(__file__).parents[2] / "src" / "samebits"
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
IMPERATIVES = frozenset(
    [
        "Add",
        "Bench",
        "Build",
        "Call",
        "Change",
        "Check",
        "Choose",
        "Clip",
        "Collect",
        "Compute",
        "Convert",
        "Copy",
        "Count",
        "Cut",
        "Decide",
        "Do",
        "Download",
        "Drop",
        "Evaluate",
        "Fetch",
        "Freeze",
        "Give",
        "Hand",
        "Install",
        "Iterate",
        "Keep",
        "Leave",
        "Let",
        "List",
        "Load",
        "Look",
        "Make",
        "Move",
        "Name",
        "Pass",
        "Prepare",
        "Put",
        "Raise",
        "Read",
        "Record",
        "Receive",
        "Reduce",
        "Register",
        "Return",
        "Run",
        "Save",
        "Say",
        "See",
        "Send",
        "Set",
        "Unset",
        "Start",
        "Take",
        "Train",
        "Try",
        "Unpack",
        "Use",
        "Verify",
        "Wait",
        "Where",
        "Write",
    ]
)
"""What a fix begins with; "Where you trust it, unpack it" is one too."""


def text_of(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) or "{}" for value in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def messages(text):
    """What exceptions and notices say: line and text of every literal in them."""
    for node in nodes(text):
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


def mistakes(text):
    """Problem and fix of every UsageError whose words stand where it is raised; an empty text for other words."""
    for node in nodes(text):
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if name in ("UsageError", "CollectiveMisused") and len(node.args) == 2:
            fix = node.args[1].body if isinstance(node.args[1], ast.IfExp) else node.args[1]
            yield node.lineno, text_of(node.args[0]), text_of(fix)


def unclear(text):
    """What is wrong with the mistakes in a file."""
    for line, problem, fix in mistakes(text):
        if problem and not problem.endswith((".", "{}")):
            yield f"{line}: the problem is not a sentence: {problem[-40:]}"
        if fix and fix.split(" ")[0] not in IMPERATIVES:
            yield f"{line}: the fix is not an imperative: {fix[:40]}"
        if fix and not fix.endswith((".", "{}", ")")):
            yield f"{line}: the fix is not a sentence: {fix[-40:]}"


def test_a_mistake_is_a_problem_in_sentences_and_a_fix_that_says_what_to_do():
    found = {str(path.relative_to(SOURCE)): list(unclear(path.read_text())) for path in SOURCE.rglob("*.py")}
    assert {path: sentences for path, sentences in found.items() if sentences} == {}
    assert sum(len(list(mistakes(path.read_text()))) for path in SOURCE.rglob("*.py")) > 300


@pytest.mark.parametrize(("problem", "fix"), [("x is wrong", "Use y."), ("x is wrong.", "The y."), ("x.", "Use y")])
def test_an_unclear_mistake_is_noticed(problem, fix):
    assert list(unclear(f"raise UsageError({problem!r}, {fix!r})"))


@pytest.mark.parametrize(
    "said", ["It waits for ever.", "The back end is gone.", "x is no regular file.", "Draw on every rank alike."]
)
def test_a_pattern_is_noticed(said):
    assert list(stumbles(f"raise UsageError({said!r}, 'Use x.')"))
    assert not list(stumbles("raise UsageError('There is no file x.', 'Use y.')"))
