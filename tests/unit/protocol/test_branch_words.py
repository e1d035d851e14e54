"""`RUN@STEP`, names of fresh options, and what a file says of a run's parent."""

import pytest

from samebits.errors import UsageError
from samebits.protocol.branch import Course, Parent, Source, fresh_names
from samebits.protocol.environment import Position, RankEnvironment, RankSettings, decode, encode
from samebits.protocol.skipped_steps import SkippedSteps


@pytest.mark.parametrize(
    ("text", "word", "step"),
    [
        ("exp1@1200", "exp1", 1200),
        ("exp1@0", "exp1", 0),
        ("exp1", "exp1", None),
        ("exp1@newest", "exp1", None),
        ("a@b@12", "a@b", 12),
        ("me@home", "me@home", None),
        ("runs/exp1@7", "runs/exp1", 7),
        ("exp1@-3", "exp1@-3", None),
        ("exp1@٣", "exp1@٣", None),
        ("exp1@" + "9" * 30, "exp1@" + "9" * 30, None),
    ],
)
def test_a_source_is_a_run_and_perhaps_a_step(text, word, step):
    assert Source.parse(text) == Source(word, step)


@pytest.mark.parametrize("text", ["", "@4", "@newest"])
def test_a_source_without_a_run_is_refused(text):
    with pytest.raises(UsageError, match="names no run"):
        Source.parse(text)


def test_fresh_names_are_names():
    assert fresh_names(None) == ()
    assert fresh_names("lr, weight_decay,lr") == ("lr", "weight_decay")
    for text in ("", "lr,", "a b", "1r", "lr;x", "\x1b[2J", "x" * 200):
        with pytest.raises(UsageError, match="--fresh"):
            fresh_names(text)


@pytest.mark.parametrize(
    "record", [None, [], {}, {"run": "x"}, {"run": 3, "step": 1}, {"run": "x", "step": -1}, {"run": "", "step": 1}]
)
def test_a_file_of_others_names_no_parent(record):
    assert Parent.read(record) is None


@pytest.mark.parametrize("course", [Course(), Course(Parent("exp1", 7), ("lr",), SkippedSteps.parse("8:9"))])
def test_a_course_is_read_as_it_was_written(course):
    assert Course.read(course.as_json()) == course
    for odd in ({"parent": {"run": "x", "step": 1, "fresh": "lr"}}, {"skipped": "x"}, {"skipped": [[3, 1]]}):
        with pytest.raises((ValueError, TypeError)):
            Course.read(odd)


def test_ranks_are_told(tmp_path):
    settings = RankSettings(
        tmp_path, 1, course=Course(Parent("exp\udcff1", 7), ("lr",), SkippedSteps(((8, 9), (12, 12))))
    )
    assert Course.read(settings.course.as_json()) == settings.course
    variables = encode(RankEnvironment(Position(), settings), 1, "run")
    assert decode(variables).settings == settings
    assert 12 in settings.course.skipped
    assert 10 not in settings.course.skipped
