"""A record that was damaged, or is somebody's who means harm: it is named, or its chain breaks; nothing else happens."""

import json
import os
import random

import pytest

from samebits.errors import UsageError
from samebits.machine.visible import visible
from samebits.protocol.record.lines import MOST_BYTES, Chain, unlinked
from samebits.protocol.record.reading import read_record
from tests.support.recorded import body_of, lines_of, write_lines

LINES = lines_of(range(1, 8), end="sha256:ab")
FIRST, START, CONDITIONS, STEPS = LINES[0], LINES[1], LINES[2], LINES[3:10]


def read(tmp_path, lines):
    return read_record(write_lines(tmp_path / "record.jsonl", lines))


def refusal(tmp_path, lines):
    with pytest.raises(UsageError) as raised:
        read(tmp_path, lines)
    assert raised.value.problem == visible(raised.value.problem)
    return raised.value.problem


def why_not(tmp_path, lines):
    """What is wrong with the record, or its chain."""
    try:
        return read(tmp_path, lines).broken
    except UsageError as error:
        return error.problem


@pytest.mark.parametrize("number", range(2, 10))
def test_no_byte_of_the_chain_can_be_changed(tmp_path, number):
    draw = random.Random(number)
    for place in range(len(LINES[number])):
        line = bytearray(LINES[number])
        line[place] ^= 1 << draw.randrange(7)
        if line[place] == ord("\n"):
            continue
        why = why_not(tmp_path, [*LINES[:number], bytes(line), *LINES[number + 1 :]])
        assert f"line {number + 1}: " in why or "(line " in why or "goes back" in why, (place, line)


@pytest.mark.parametrize("number", range(2, 9))
def test_no_line_of_the_chain_can_be_left_out(tmp_path, number):
    assert "the chain breaks at step" in read(tmp_path, [*LINES[:number], *LINES[number + 1 :]]).broken


def test_without_its_last_line_a_record_has_no_end(tmp_path):
    record = read(tmp_path, [*LINES[:9], LINES[10]])
    assert (record.broken, record.last, record.end) == ("", 6, None)


@pytest.mark.parametrize("number", range(2, 9))
def test_no_lines_of_the_chain_can_be_swapped(tmp_path, number):
    swapped = [*LINES[:number], LINES[number + 1], LINES[number], *LINES[number + 2 :]]
    assert read(tmp_path, swapped).broken


@pytest.mark.parametrize("number", range(3, 10))
def test_no_step_can_come_twice(tmp_path, number):
    broken = read(tmp_path, [*LINES[: number + 1], *LINES[number:]]).broken
    assert f"goes back from step {number - 2} to step {number - 2}" in broken


def test_conditions_that_come_twice_at_one_place_are_one(tmp_path):
    record = read(tmp_path, [*LINES[:3], *LINES[2:]])
    assert (record.broken, len(record.conditions), record.last) == ("", 1, 7)


def test_starts_and_the_end_are_in_no_chain(tmp_path):
    assert read(tmp_path, [FIRST, CONDITIONS, *STEPS, START, START]).broken == ""


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "has no line of a record"),
        (LINES[1:], "line 1: it is not the first line of a record"),
        (LINES[2:], "line 1: it is not the first line of a record"),
        ([unlinked({"record": 2})], "line 1: it is of format 2, and this version reads format 1"),
        ([*LINES, unlinked({"record": 2})], "line 12: it is of format 2"),
        ([b""], "line 1: it is not JSON"),
        ([FIRST, b"\0" * 100], "line 2: it is not JSON"),
        ([FIRST, b"\xff\xfe{}"], "line 2: it is not JSON"),
        ([FIRST, b'{"start":0,"script":"\xff"}'], "line 2: it is not JSON"),
        ([FIRST, '{"start":0}'.encode("utf-16")], "line 2: it is not JSON"),
        ([FIRST, b"[" * 100_000 + b"]" * 100_000], "line 2: it is nested too deeply"),
        ([FIRST, b'{"conditions":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001], "line 2: it is nested too deeply"),
        ([FIRST, b"x" * (5 << 20)], "has a line of more than 4 MiB"),
        ([FIRST, unlinked({"start": 0, "script": "x" * (5 << 20)})], "has a line of more than 4 MiB"),
        ([FIRST, b'{"start":0,"start":1}'], "line 2: it is not JSON, or not as samebits writes it"),
        ([FIRST, b"{}"], "line 2: it is not a line"),
        ([FIRST, b"[]"], "line 2: it is not a line"),
        ([FIRST, b'"step"'], "line 2: it is not a line"),
        ([FIRST, b"7"], "line 2: it is not a line"),
        ([FIRST, b'{"other":1}'], "line 2: it is not a line"),
        ([FIRST, b'{"start":-1}'], "line 2: it is not a line"),
        ([FIRST, b'{"start":true}'], "line 2: it is not a line"),
        ([FIRST, b'{"start":1.0}'], "line 2: it is not a line"),
        ([FIRST, b'{"start":0,"ranks":[]}'], "line 2: it is not a line"),
        ([FIRST, b'{"start":0,"arguments":"--lr"}'], "line 2: it is not a line"),
        ([FIRST, b'{"start":0,"arguments":[1]}'], "line 2: it is not a line"),
        ([FIRST, b'{"start":' + b"9" * 5_000 + b"}"], "line 2: it is not JSON"),
        ([FIRST, b'{"start":9007199254740992}'], "line 2: it is not a line"),
        ([FIRST, b'{"conditions":[],"after":0,"chain":""}'], "line 2: it is not a line"),
        ([FIRST, b'{"conditions":{"files":[]},"after":0,"chain":""}'], "line 2: it is not a line"),
        ([FIRST, b'{"conditions":{},"after":-1,"chain":""}'], "line 2: it is not a line"),
        ([FIRST, b'{"conditions":{},"after":0,"chain":"ab"}'], "line 2: it has no link"),
        ([FIRST, b'{"conditions":{"a":1e400},"after":0,"chain":"ab"}'], "line 2: it is not JSON"),
        ([FIRST, b'{"end":1}'], "line 2: it is not a line"),
        ([FIRST, b'{"state":1,"files":{"a":1}}'], "line 2: it is not a line"),
        ([FIRST, b'{"differs":1,"was":{},"is":{}}'], "line 2: it is not a line"),
        ([FIRST, b'{"differs":1,"was":{"step":1,"loss":{}},"is":{"step":1}}'], "line 2: it is not a line"),
    ],
)
def test_what_is_no_record_is_told_where(tmp_path, lines, why):
    assert why in refusal(tmp_path, lines)


@pytest.mark.parametrize(
    "text",
    [
        b'"step":1',
        b'"step":0,"loss":[0.5]',
        b'"step":-1',
        b'"step":1,"loss":[1e400]',
        b'"step":1,"loss":[-1e400]',
        b'"step":1,"loss":[NaN]',
        b'"step":1,"loss":[Infinity]',
        b'"step":1,"loss":0.5',
        b'"step":1,"loss":[[0.5]]',
        b'"step":1,"loss":[true]',
        b'"step":1,"loss":[' + b"9" * 4_000 + b"]",
        b'"step":1,"lr":{}',
        b'"step":1,"epoch":"1"',
        b'"step":1,"ids":7',
        b'"step":1,"from":-1',
        b'"step":1,"scale":1.0',
        b'"step":1,"unknown":1',
        b'"step":1e3',
        b'"step":9007199254740992',
    ],
)
def test_a_step_says_what_steps_say_or_nothing(tmp_path, text):
    line = b"{" + text + (b"}" if text == b'"step":1' else b',"chain":"' + b"0" * 32 + b'"}')
    assert "line 2: it is not " in refusal(tmp_path, [FIRST, line])


def test_text_that_acts_on_a_terminal_is_a_text(tmp_path):
    hostile = "\x1b[2J\u202e\ud800"
    chain = Chain()
    lines = [
        FIRST,
        unlinked({"start": 0, "script": hostile}),
        chain.line({"conditions": {hostile: hostile}, "after": 0}),
    ]
    record = read(tmp_path, [*lines, chain.line(body_of(1, loss=[hostile]))])
    assert (record.broken, record.starts[0]["script"], record.step(1)["loss"]) == ("", hostile, [hostile])


def test_many_conditions_take_no_time_and_no_room(tmp_path):
    line = Chain().line({"conditions": {}, "after": 0})
    record = read(tmp_path, [FIRST, *[line] * 50_000])
    assert (record.broken, len(record.conditions)) == ("", 1)
    chain, lines = Chain(), []
    for after in range(50_000):
        chain.head = ""
        lines.append(chain.line({"conditions": {}, "after": after}))
    record = read(tmp_path, [FIRST, *lines])
    assert (record.broken, len(record.conditions)) == ("", 50_000)


def test_what_is_no_file_is_told_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-a-fifo").symlink_to("fifo")
    (tmp_path / "empty").touch()
    for name, kind in (("fifo", "a FIFO"), ("to-a-fifo", "a link"), ("", "a folder"), ("/dev/zero", "a device")):
        with pytest.raises(UsageError, match=f"it is {kind}, not a regular file"):
            read_record(tmp_path / name)
    with pytest.raises(UsageError, match="has no line of a record"):
        read_record(tmp_path / "empty")


def test_a_file_of_gigabytes_is_not_read(tmp_path):
    path = write_lines(tmp_path / "record.jsonl", LINES)
    os.truncate(path, 5 << 30)
    with pytest.raises(UsageError, match="has 5 GiB, which no run writes"):
        read_record(path)


def test_the_longest_line_is_read(tmp_path):
    start = {"start": 0, "script": ""}
    start["script"] = "x" * (MOST_BYTES - len(unlinked(start)))
    assert len(unlinked(start)) == MOST_BYTES
    assert read(tmp_path, [FIRST, unlinked(start)]).starts == [json.loads(json.dumps(start))]
