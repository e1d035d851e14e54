"""What a page shows: of whole, half written and hostile run folders."""

import http.client
import io
import json
import math
import os
import re
import socket
import stat
import struct
import threading
import webbrowser
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from samebits.errors import UsageError
from samebits.launcher.watch.view import View
from samebits.machine.growing_file import MOST_BYTES
from samebits.machine.processes import began_ticks
from samebits.protocol.case import Case
from samebits.protocol.events import Kind, add_event, events_in, executed_steps
from samebits.protocol.run_folder import RunFolder
from samebits.show import server
from samebits.show.curves import Curve, CurveReader, first_difference
from samebits.show.demo.demo import SCRIPT
from samebits.show.live import show_in_browser
from samebits.show.report import compare, embedded, page, slower
from samebits.show.run_data import RunDataReader, read_run_data
from samebits.show.screen import AXIS, braille, screen_of
from samebits.show.server import HOST, LivePage
from samebits.show.story import story_of
from samebits.show.trace import write_trace
from tests.support.promises import promise

HOSTILE = "</script><script>alert(1)</script>\u2028\x1b[2J"


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path)
    made.plan.write_text(json.dumps({"script": f"{HOSTILE}.py", "args": [HOSTILE], "ranks": 2, "threads": 1}))
    return made


def logged(folder, losses):
    folder.metrics.write_text(
        "".join(json.dumps({"step": step, "time": 0.0, "loss": loss}) + "\n" for step, loss in enumerate(losses, 1))
    )


def test_an_event_is_read_as_it_was_written_and_what_is_none_is_left_out(folder):
    add_event(folder.events, Kind.KILL, 7, rank=1, signal="SIGKILL", time_s=12.5)
    with folder.events.open("a") as file:
        file.write(
            '{"event": "kill"}\n[1]\n{"event": "bogus", "time": 1, "step": 1}\n{"event": "end", "time": 1e999, "step": 1}\n{"ev'
        )
    (event,) = events_in(folder.events)
    assert (event.kind, event.step, event.time_s, event.fields) == (
        Kind.KILL,
        7,
        12.5,
        {"rank": 1, "signal": "SIGKILL"},
    )


def test_executed_steps_count_those_that_were_executed_again(folder):
    for kind, step in [(Kind.START, 0), (Kind.PACE, 9), (Kind.START, 10), (Kind.RESUME, 8), (Kind.PACE, 20)]:
        add_event(folder.events, kind, step)
    assert executed_steps(events_in(folder.events), [10, 20]) == 10 + 12


@given(st.lists(st.floats(), max_size=300), st.integers(2, 50))
def test_a_thinned_curve_is_short_ordered_and_keeps_its_extremes(values, most):
    steps, shown = Curve(list(range(len(values))), values, sum(map(math.isnan, values)) + 1).thinned(most)
    known = [value for value in values if math.isfinite(value)]
    assert len(steps) == len(shown) <= most
    assert steps == sorted(set(steps))
    if known:
        assert {min(known), max(known)} <= set(shown)


def test_metrics_that_are_too_many_are_read_evenly_and_the_page_says_so(folder):
    line = json.dumps({"step": 10**9, "loss": 1.0}) + "\n"
    with folder.metrics.open("w") as file:
        file.write('{"step": 0, "loss": 0.5}\n')
        file.truncate(MOST_BYTES + len(line))
        file.seek(MOST_BYTES)
        file.write(line)
    assert not CurveReader(folder.metrics).read().is_whole
    assert not story_of(read_run_data(folder))["is_whole"]


def test_the_first_other_value_is_found_to_the_last_bit():
    ours, theirs = Curve([1, 2, 3], [1.0, math.nan, 0.1 + 0.2]), Curve([1, 2, 3, 4], [1.0, math.nan, 0.3, 9.0])
    assert first_difference(ours, theirs) == 3
    assert first_difference(ours, Curve([1, 2], [1.0, math.nan])) is None


def test_a_hostile_run_breaks_out_of_no_page(folder):
    logged(folder, [1.0, math.nan, math.inf])
    add_event(folder.events, Kind.START, 0, ranks=2, device=HOSTILE)
    add_event(folder.events, Kind.FINDING, 0, said=HOSTILE, finding=HOSTILE)
    written = page({"mode": "report", "story": story_of(read_run_data(folder))})
    assert written.count("</script>") == 2
    assert "\x1b" not in written
    assert not re.search(r'(?:src|href)="(?!data:)', written), "it loads nothing"
    data = re.search(r'id="data">(.*?)</script>', written, re.DOTALL).group(1)
    assert json.loads(data)["story"]["curves"][0]["values"] == [1.0, None, None]


@given(st.text())
def test_what_is_embedded_is_what_is_read(text):
    assert json.loads(embedded({"text": text})) == {"text": text}


@pytest.mark.parametrize(
    "content", ["", "garbage\n", "[[[[", '{"event": "pace", "time": 1, "step": 3, "memory": 5, "shares": []}\n']
)
def test_a_folder_with_nothing_in_it_or_with_garbage_has_a_page(tmp_path, content):
    for name in ("plan.json", "events.jsonl", "metrics.jsonl", "summary.json"):
        (tmp_path / name).write_text(content)
    assert page({"mode": "report", "story": story_of(read_run_data(RunFolder(tmp_path)))})


FIELDS = (
    "event",
    "time",
    "step",
    "ranks",
    "host",
    "shares",
    "memory",
    "loss",
    "step_ms",
    "said",
    "rank",
    "from",
    "path",
)
EVENTS = [
    {"event": "start", "time": 1.0, "step": 0, "ranks": 2, "device": "cpu", "host": "a", "attempt": 0},
    {"event": "pace", "time": 2.0, "step": 3, "shares": {"data": 0.5}, "step_ms": 2.0, "memory": [1, 2], "loss": 1.0},
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "other"]), inner),
    max_leaves=4,
)


@given(st.sampled_from(FIELDS), ANYTHING, st.sampled_from(["args", "script", "ranks", "device"]), ANYTHING)
@example("event", [], "args", 1)
@example("host", [[]], "args", [])
@example("shares", {"data": 1e15}, "args", [])
def test_whatever_a_field_holds_the_run_has_a_page_and_a_screen(name, value, of_plan, planned):
    with TemporaryDirectory() as place:
        folder = RunFolder(Path(place))
        folder.plan.write_text(json.dumps({"script": "train.py", "ranks": 2, of_plan: planned}))
        folder.events.write_text("".join(json.dumps({**event, name: value}) + "\n" for event in EVENTS))
        data = read_run_data(folder)
    assert page({"mode": "report", "story": story_of(data)})
    assert data.is_elsewhere in (True, False)
    Console(file=io.StringIO(), width=80).print(screen_of(data, View(()), 30, 80))


def test_a_run_is_slower_by_more_than_a_share_and_one_of_unknown_speed_too(tmp_path):
    def run(name, seconds):
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir()
        told = {"0": {"samples": 100, "compute_s": seconds}} if seconds else {}
        folder.summary.write_text(json.dumps({"time": told}))
        return read_run_data(folder)

    first = run("first", 1.0)
    compared = [compare(first, run("same", 1.05)), compare(first, run("slow", 1.3)), compare(first, run("none", 0))]
    assert [one.name for one in slower(compared, 0.1)] == ["slow", "none"]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400), st.integers(1, 60), st.integers(1, 8))
def test_a_curve_of_a_terminal_fits_and_has_a_dot_for_each_value_that_has_a_column(values, width, height):
    rows = braille(values, width, height)
    assert len(rows) == height
    assert {len(row) for row in rows} == {width + AXIS}
    dots = sum((ord(letter) - 0x2800).bit_count() for row in rows for letter in row[AXIS:])
    assert dots == min(len(values), 2 * width)


def asked(url, path, method="GET", host=None):
    connection = http.client.HTTPConnection(*urlsplit(url).netloc.split(":"), timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    with closing(connection), connection.getresponse() as answer:
        return answer.status, answer.read()


def test_a_live_page_answers_only_who_has_its_token_and_kills_only_where_it_may():
    killed = []
    with LivePage(lambda: {"is_over": True}, killed.append) as live, LivePage(dict) as other:
        query = f"?token={live.token}"
        assert asked(live.url, f"/{query}")[0] == 200
        assert json.loads(asked(live.url, f"/state{query}")[1]) == {"is_over": True}
        assert live.seen_over.wait(10)
        for path, host in (("/", None), ("/state?token=x", None), (f"/state{query}", "evil.example:80")):
            assert asked(live.url, path, host=host)[0] == 403
        assert asked(live.url, "/kill/2?token=", "POST")[0] == 403
        assert asked(live.url, f"/kill/2{query}", "POST")[0] == 204
        assert asked(live.url, f"/kill/-1{query}", "POST")[0] == 404
        assert asked(other.url, f"/kill/2?token={other.token}", "POST")[0] == 404
        assert killed == [2]
        with pytest.raises(UsageError, match="Port"), LivePage(dict, port=live.number):
            pass


HALF = b"GET /state"


def strange(live):
    """What others may send, and what they send it for."""
    whole = f"GET /state?token={live.token} HTTP/1.1\r\nHost: 127.0.0.1:1\r\n".encode()
    return {
        "a wrong token": b"GET /?token=x HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
        "no ASCII": b"GET /?token=\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
        "no host": f"GET /state?token={live.token} HTTP/1.1\r\n\r\n".encode(),
        "another host": whole.replace(b"127.0.0.1", b"evil.example") + b"\r\n",
        "no address": b"GET //[ HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
        "garbage": bytes(range(256)) * 4 + b"\r\n\r\n",
        "TLS": bytes.fromhex("16030100f4010000f00303") + bytes(range(11, 251)) + b"\n\n",
        "a long line": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        "many headers": whole + b"a: b\r\n" * 200 + b"\r\n",
        "half a request": HALF,
        "nothing": b"",
        "an old version": b"GET /\r\n\r\n",
        "another method": b"PUT / HTTP/1.1\r\n\r\n",
    }


@promise(
    "shut",
    "Strangers at a live page's port learn nothing, print nothing and keep no thread; its token is in no command line",
    also=["test_a_browser_is_led_to_the_page_by_a_file_that_only_its_user_can_read"],
)
def test_strangers_learn_nothing_print_nothing_and_keep_no_thread(capfd, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE_S", 0.2)
    with LivePage(lambda: {"secret": 1}) as live:
        for what, data in strange(live).items():
            with socket.create_connection((HOST, live.number), timeout=20) as stranger:
                stranger.sendall(data)
                answer = b""
                with suppress(ConnectionResetError):
                    while part := stranger.recv(1 << 16):
                        answer += part
                assert b"secret" not in answer, what
                assert b" 200 " not in answer, what
        assert live.num_requests == 0
        query = f"GET /?token={live.token} HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n".encode()
        for data in (b"", HALF, query, 50 * query):
            with socket.create_connection((HOST, live.number)) as stranger:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stranger.sendall(data)
        assert asked(live.url, f"/state?token={live.token}")[0] == 200
    names = [thread.name for thread in threading.enumerate() if "process_request" in thread.name]
    for thread in threading.enumerate():
        if thread.name in names:
            thread.join(20)
            assert not thread.is_alive()
    assert capfd.readouterr() == ("", "")


def test_the_page_is_served_however_many_connections_others_keep_open(monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 8)
    with ExitStack() as ends, LivePage(dict) as live:
        for _ in range(20):
            stranger = ends.enter_context(socket.create_connection((HOST, live.number)))
            with suppress(OSError):
                stranger.sendall(HALF)
        assert asked(live.url, f"/state?token={live.token}")[0] == 200


def test_a_browser_is_led_to_the_page_by_a_file_that_only_its_user_can_read(tmp_path, monkeypatch):
    browser, given = tmp_path / "browser", tmp_path / "given"
    browser.write_text(f'#!/bin/sh\necho "$@" > {given}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(browser))
    monkeypatch.setenv("DISPLAY", ":9")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setattr(webbrowser, "_tryorder", None)
    with LivePage(dict) as live:
        (line,) = show_in_browser(live, tmp_path, wanted=True)
        assert line.split() == ["page", live.url]
        (url,) = given.read_text().split()
        assert live.token not in url
        file = Path(urlsplit(url).path)
        assert live.url in file.read_text()
        assert [stat.S_IMODE(one.stat().st_mode) for one in (file, file.parent)] == [0o600, 0o700]
        assert asked(live.url, f"/?token={live.token}")[0] == 200
    assert not file.parent.exists()
    with LivePage(dict) as live:
        show_in_browser(live, tmp_path / "missing", wanted=True)
        other = Path(urlsplit(given.read_text().split()[0]).path)
        assert other.exists()
    assert not other.parent.exists(), "also where no browser has come"


def test_a_run_is_read_on_and_anew_where_its_files_are_others(folder):
    reader = RunDataReader(folder)
    assert (reader.read().events, reader.read().curves.by_name) == ([], {})
    add_event(folder.events, Kind.START, 0, ranks=2)
    logged(folder, [3.0, 2.0])
    before = reader.read()
    with folder.metrics.open("a") as file:
        file.write('{"step": 3, "loss": null}\n{"step": 4, "lo')
    add_event(folder.events, Kind.KILL, 3, rank=1)
    after = reader.read()
    assert (len(before.events), [one.kind for one in after.events]) == (1, [Kind.START, Kind.KILL])
    assert list(after.curves.by_name["loss"].steps) == [1, 2, 3]
    assert after.curves.by_name["loss"].num_unfinite == 1
    logged(folder, [9.0])
    folder.events.unlink()
    again = reader.read()
    assert list(again.curves.by_name["loss"].values) == [9.0]
    assert len(again.events) == 2, "what is gone was"
    assert again.curves.by_name["loss"].thinned() == ([1], [9.0])


@given(st.lists(st.floats() | st.sampled_from([math.nan, 0.0]), max_size=200), st.data())
def test_a_curve_that_grows_is_thinned_as_one_that_is_whole(values, data):
    most, curve = data.draw(st.integers(2, 30)), Curve()
    for step, value in enumerate(values):
        curve.add(step, value)
        if data.draw(st.booleans()):
            curve.thinned(most)
    steps, shown = curve.thinned(most)
    assert len(steps) <= most
    assert steps == sorted(set(steps))
    known = [value for value in values if math.isfinite(value)]
    assert not known or {min(known), max(known)} <= set(shown)


def test_a_long_curve_has_its_newest_value_on_the_screen(folder):
    logged(folder, [1.0] * 5000 + [0.25])
    drawn = Console(file=io.StringIO(), width=80, height=30)
    drawn.print(screen_of(read_run_data(folder), View(()), 30, 80))
    assert "loss 0.25" in drawn.file.getvalue()


def test_a_trace_has_a_slice_around_each_step_and_lines_for_kills_of_its_time(folder):
    add_event(folder.events, Kind.KILL, 4, rank=1, time_s=100.5)
    add_event(folder.events, Kind.RESTART, 4, said=HOSTILE, time_s=101.0)
    add_event(folder.events, Kind.KILL, 9, rank=1, time_s=999.0)
    folder.traces.mkdir()
    s = 10**9
    part = {"rank": 1, "since_1970_ns": 100 * s, "phases": [["data", "fetch", 0, s], ["compute", "lane 0", s, 2 * s]]}
    part |= {"steps": [[4, 2, 32, 0, 2 * s], [5, "x", 32, 0, s], [6]], "spans": [["waits", "barrier", 0, 1]]}
    (folder.traces / "rank-00001-7.json").write_text(json.dumps(part))
    (folder.traces / "rank-00001-8.json").write_text(json.dumps(part | {"steps": "x", "since_1970_ns": 100 * s}))
    written = json.loads(write_trace(folder).read_text())["traceEvents"]
    (step,) = [one for one in written if one.get("cat") == "step"]
    assert (step["name"], step["args"], step["ts"], step["dur"]) == (
        "step 4",
        {"step": 4, "epoch": 2, "samples": 32},
        0,
        2e6,
    )
    assert written.index(step) < written.index(next(one for one in written if one["name"] == "data"))
    lines = [(one["name"], one["s"], one["ts"]) for one in written if one["ph"] == "i"]
    assert lines == [("rank 1 killed", "g", 0.5e6), ("restart", "g", 1e6)]
    assert "\x1b" not in json.dumps(written, ensure_ascii=False)
    assert {one["tid"] for one in written if one.get("cat") == "waits"} == {1}


def test_a_branch_says_where_it_began_and_is_compared_from_there(tmp_path):
    first, branch = RunFolder(tmp_path / "exp1"), RunFolder(tmp_path / "exp2")
    for one in (first, branch):
        one.path.mkdir()
    first.plan.write_text(json.dumps({"script": "train.py", "ranks": 1}))
    parent = {"run": f"exp1{HOSTILE}", "step": 3, "fresh": ["lr"]}
    course = {"parent": parent, "skipped": [[5, 6]]}
    branch.plan.write_text(json.dumps({"script": "train.py", "args": ["--lr", "1"], "ranks": 1, **course}))
    logged(first, [1.0, 2.0, 3.0, 4.0, 5.0])
    branch.metrics.write_text("".join(f'{{"step": {step}, "loss": {step}.0}}\n' for step in (4, 5)))
    ours, theirs = read_run_data(first), read_run_data(branch)
    assert compare(ours, theirs).difference == ""
    branch.metrics.write_text("".join(f'{{"step": {step}, "loss": {value}}}\n' for step, value in ((4, 4.0), (5, 7.0))))
    assert compare(ours, read_run_data(branch)).difference == "loss at step 5"
    story = story_of(theirs)
    assert story["marks"][0]["step"] == 3
    assert story["branch"].startswith("branched from exp1")
    assert story["branch"].endswith("after step 3")
    assert "without the samples of steps 5 to 6" in story["sub"]
    command = story["bits"]["commands"][0]
    assert command.startswith("samebits run -n 1 --from 'exp1<")
    assert command.endswith("@3' --name again --fresh lr --skip-steps 5:6 train.py --lr 1")
    assert "\x1b" not in json.dumps(story, ensure_ascii=False)
    assert story_of(ours)["branch"] == ""


@pytest.mark.parametrize("odd", [{"parent": [1]}, {"parent": {"run": 3}}, {"skipped": "x"}, {"skipped": [[3, 1]]}])
def test_an_odd_parent_is_none(folder, odd):
    folder.plan.write_text(json.dumps({"script": "train.py", "ranks": 1, **odd}))
    assert story_of(read_run_data(folder))["branch"] == ""


def test_a_run_that_failed_says_so_before_anything_good_and_only_kills_that_were(folder):
    folder.plan.write_text(json.dumps({"script": "train.py", "ranks": 2}))
    add_event(folder.events, Kind.START, 0, ranks=2, device="cpu")
    add_event(folder.events, Kind.FAILURE, 20, rank=1, said="KeyError: 'b'")
    add_event(folder.events, Kind.END, 20, exit_code=1, seconds=3.0)
    folder.outcome.write_text(json.dumps({"exit_code": 1, "block": f"FAILED    rank 1, {HOSTILE}\n  | KeyError: 'b'"}))
    Case("crash", f"rank 1, {HOSTILE.splitlines()[0]}; more").add_to(folder.findings)
    Case("starved-loader", "data 70%: more loader workers").add_to(folder.findings)
    story = story_of(read_run_data(folder))
    assert story["is_bad"]
    assert "\n  | KeyError: 'b'" in story["failure"]
    assert "\x1b" not in story["failure"]
    assert [one["name"] for one in story["findings"]] == ["starved-loader"], "the block has said the other one"
    assert "kill" not in json.dumps(story["cards"])
    assert [event["is_bad"] for event in story["events"]] == [False, False, True]


def test_the_largest_part_of_a_step_is_a_number_of_its_own_and_large_numbers_are_read_easily(folder):
    add_event(folder.events, Kind.START, 0, ranks=2, device="cpu")
    add_event(folder.events, Kind.KILL, 1200, rank=1, signal="SIGKILL")
    add_event(folder.events, Kind.RESTART, 1200, said="", steps_again=1200)
    shares = {"data_s": 7.0, "compute_s": 3.0}
    told = {"time": {"0": shares}, "samples": "1437 samples x 12 epochs, each once"}
    folder.summary.write_text(json.dumps(told))
    cards = {card["value"]: card["label"] for card in story_of(read_run_data(folder))["cards"]}
    assert cards["data 70%"].startswith("of a step")
    assert cards["1 kill"] == "1 restart, 1,200 steps again"
    assert cards["each once"] == "1,437 samples × 12 epochs"
    marks = [mark["kind"] for mark in story_of(read_run_data(folder))["marks"]]
    assert marks == ["kill"], "one line for each kill"


def test_the_commands_of_a_run_have_the_options_before_the_script(folder):
    plan = {"module": "package.train", "args": ["--lr", "1"], "ranks": 2, "numerics": "portable", "precision": None}
    folder.plan.write_text(json.dumps(plan))
    folder.decided.write_text(json.dumps({"lanes": 16, "threads": 2, "lanes_named": False}))
    assert story_of(read_run_data(folder))["bits"]["commands"] == [
        "samebits run -n 1 --lanes 16 --threads 2 --numerics portable -m package.train --lr 1",
        "samebits verify --ranks 1,2,4 --lanes 16 --threads 2 --numerics portable -m package.train --lr 1",
    ]
    folder.plan.write_text(json.dumps({"script": str(SCRIPT), "args": ["0.05"], "ranks": 4}))
    assert story_of(read_run_data(folder))["bits"]["commands"][0].endswith(" -m samebits.show.demo.train 0.05")


def test_a_run_whose_launcher_is_gone_is_not_called_running(folder):
    folder.plan.write_text(json.dumps({"script": "train.py", "ranks": 1, "launcher": [os.getpid(), 1]}))
    assert story_of(read_run_data(folder))["status"].startswith("left without an end")
    ticks = began_ticks(os.getpid())
    folder.plan.write_text(json.dumps({"script": "train.py", "ranks": 1, "launcher": [os.getpid(), ticks]}))
    assert story_of(read_run_data(folder))["status"] == "running"
