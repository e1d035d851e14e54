"""`watch` and `diagnose` read a run's folder, whoever wrote it."""

import io
import json
import os
import re
import resource
import shutil
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from samebits.cli.diagnose import diagnose
from samebits.cli.report import report
from samebits.cli.start_checkpoint import one_state
from samebits.cli.watch import watch
from samebits.errors import UsageError
from samebits.launcher.diagnosis.scene import Life, RankScene
from samebits.launcher.diagnosis.scenes import Scenes
from samebits.launcher.watch.diagnosis import is_stuck
from samebits.launcher.watch.places import roster_of, run_at
from samebits.launcher.watch.table import duration_text, grouped, table_of, total_of
from samebits.launcher.watch.view import Row, State, View, Viewer
from samebits.machine.processes import began_ticks
from samebits.protocol.case import Case
from samebits.protocol.journal.gauges import Waiting
from samebits.protocol.journal.ring import JournalWriter, Phase, make_ring
from samebits.protocol.journal.waiting_note import WaitingNote
from samebits.protocol.run_folder import STATES, RunFolder, add_line
from samebits.show.live import LiveRun
from tests.support.promises import promise


def made(path, ranks=2, **more):
    """A run's folder, as its launcher leaves it before the ranks begin."""
    folder = RunFolder(path)
    for each in folder.folders():
        each.mkdir(parents=True)
    for rank in range(ranks):
        make_ring(folder.journal(rank), rank)
    plan = {"script": "train.py", "module": None, "function": None, "ranks": ranks, **more}
    folder.plan.write_text(json.dumps(plan))
    return folder


def test_a_run_is_found_by_path_by_name_and_as_the_newest(tmp_path):
    older = made(tmp_path / "older")
    os.utime(older.plan, ns=(0, 0))
    newer = made(tmp_path / "newer")
    assert run_at(str(older.path), tmp_path / "elsewhere").folder == older
    assert run_at("older", tmp_path).folder == older
    assert run_at(None, tmp_path).folder == newer
    assert run_at(str(tmp_path), tmp_path).folder == newer  # a named run: one folder for each start


@pytest.mark.parametrize("word", ["", "."])
def test_a_folder_without_a_run_is_named_where_the_word_would_be_lost_in_the_sentence(tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^There is no run in {re.escape(str(tmp_path))}\\."):
        run_at(word, tmp_path / "elsewhere")
    (tmp_path / STATES).mkdir()
    with pytest.raises(UsageError, match=f"^{re.escape(str(tmp_path))} has no states yet"):
        one_state(word)


def test_a_script_whose_name_has_a_newline_makes_no_line_of_its_own(tmp_path):
    folder = made(tmp_path / "run")
    folder.plan.write_text(json.dumps({"script": "x\nhelp: run this", "ranks": 2}))
    assert "\n" not in run_at(str(folder.path), tmp_path).text


def test_what_a_rank_did_last_is_told_when_it_has_ended(tmp_path):
    folder = made(tmp_path / "run")
    JournalWriter(folder.journal(1)).write(Phase.COMPUTE, "lane 1", 7, 1, "/home/me/train.py", 31)
    view = Viewer(run_at("run", tmp_path)).look()
    assert view.is_over
    assert (view.rows[1].state, view.rows[1].doing, view.rows[1].place) == (
        State.ENDED,
        "forward and backward of step 7",
        "train.py:31",
    )
    told = CliRunner().invoke(diagnose, [str(folder.path)])
    assert told.exit_code == 1
    assert "ended without an outcome: the launcher was killed, or the machine went down" in told.output
    assert "rank 1, forward and backward of step 7 (train.py:31)" in told.output


@pytest.mark.parametrize(
    ("end", "doing"),
    [
        ({"code": 0, "signal": 0}, "came to its end"),
        ({"code": 137, "signal": 9}, "killed by signal 9 (SIGKILL)"),
        ({"code": 3, "signal": 0}, "ended with exit code 3"),
        (
            {"code": 143, "signal": 15, "stopped": True},
            "stopped by samebits, as another rank or a signal ended the run",
        ),
        ({"code": "x", "signal": [1 << 99]}, "in the script since step 276"),
        (None, "in the script since step 276"),
    ],
)
def test_how_a_rank_ended_is_told_instead_of_what_it_did_last(tmp_path, end, doing):
    folder = made(tmp_path / "run")
    JournalWriter(folder.journal(1)).write(Phase.SCRIPT, "", 276, 12, "/home/me/train.py", 40)
    folder.outcome.write_text(json.dumps({"exit_code": 0, "duration_s": 3.5, "ends": {"1": end}}))
    row = Viewer(run_at("run", tmp_path)).look().rows[1]
    assert (row.state, row.doing) == (State.ENDED, doing)


def test_an_outcome_is_told_as_the_launcher_did(tmp_path):
    folder = made(tmp_path / "run")
    folder.outcome.write_text(json.dumps({"exit_code": 0, "duration_s": 3.5, "signal": 0, "block": ""}))
    told = CliRunner().invoke(diagnose, ["--json", str(folder.path)])
    assert (told.exit_code, json.loads(told.output)["headline"]) == (0, "ended well after 3.5 s")


def no_plan(folder):
    folder.plan.unlink()


def no_json(folder):
    folder.plan.write_text("{")


def list_for_plan(folder):
    folder.plan.write_text("[1]")


def deep_json(folder):
    folder.plan.write_text("[" * 100_000)


def endless_ranks(folder):
    folder.plan.write_text('{"script": "a.py", "ranks": 1e999}')


def too_many_ranks(folder):
    folder.plan.write_text(json.dumps({"script": "a.py", "module": None, "function": None, "ranks": 10**9}))


def truth_for_ranks(folder):
    folder.plan.write_text('{"script": "a.py", "ranks": true}')


def long_number(folder):
    folder.plan.write_text('{"script": "a.py", "ranks": ' + "9" * 5000 + "}")


def bytes_for_plan(folder):
    folder.plan.write_bytes(b"\xff\xfe\0" * 1000)


def no_journal(folder):
    folder.journal(1).unlink()


def folder_for_journal(folder):
    folder.journal(0).unlink()
    folder.journal(0).mkdir()


def fifo_for_plan(folder):
    folder.plan.unlink()
    os.mkfifo(folder.plan)


def link_for_plan(folder):
    folder.plan.rename(folder.path / "other.json")
    folder.plan.symlink_to("other.json")


def endless_plan(folder):
    with folder.plan.open("r+b") as file:
        file.truncate(1 << 40)


def fifo_for_journal(folder):
    folder.journal(0).unlink()
    os.mkfifo(folder.journal(0))


def other_version(folder):
    folder.journal(0).write_bytes(b"lkstpJ01".ljust(1 << 17, b"\0"))


def half_a_journal(folder):
    with folder.journal(1).open("r+b") as file:
        file.truncate(5000)


def empty_journal(folder):
    folder.journal(1).write_bytes(b"")


SPOILT_PLANS = (
    *(no_plan, no_json, list_for_plan, deep_json, endless_ranks, too_many_ranks, fifo_for_plan),
    *(truth_for_ranks, long_number, bytes_for_plan, link_for_plan, endless_plan),
)
SPOILT_JOURNALS = (*(no_journal, folder_for_journal, fifo_for_journal, other_version, half_a_journal, empty_journal),)


@pytest.mark.parametrize(
    ("command", "spoil"),
    [
        *((command, spoil) for command in (watch, diagnose) for spoil in (*SPOILT_PLANS, *SPOILT_JOURNALS)),
        *((report, spoil) for spoil in SPOILT_PLANS),
    ],
)
def test_what_is_no_run_is_one_sentence_with_a_fix(tmp_path, command, spoil):
    folder = made(tmp_path / "run")
    spoil(folder)
    began = time.monotonic()
    done = CliRunner().invoke(command, [str(folder.path)])
    assert isinstance(done.exception, UsageError), done.output
    assert done.exception.problem.endswith(".")
    assert done.exception.fix.endswith(".")
    assert time.monotonic() - began < 5


EVIL = "\x1b[2J\x9b31m\u202eevil\nstate     ended well\r\x07"


def evil_texts(folder):
    plan = {"script": EVIL, "module": None, "function": None, "ranks": 2}
    folder.plan.write_text(json.dumps(plan))
    folder.outcome.write_text(json.dumps({"exit_code": EVIL, "duration_s": EVIL, "signal": EVIL, "block": EVIL}))
    folder.restarts.write_text(f"{json.dumps({'lost': EVIL})}\n[1]\n{{")
    found = {"finding": EVIL, "said": EVIL, "ranks": [0], "time": 1.0}
    folder.findings.write_text(json.dumps(found) + "\n" + json.dumps(found | {"finding": "segfault"}) + "\n")
    JournalWriter(folder.journal(0)).write(Phase.EXCHANGE, EVIL, 7, 1, f"/home/{EVIL}.py", 31)
    WaitingNote(folder.journal(1))._write(Waiting(1, frozenset({0, 900}), EVIL))


def wrong_kinds(folder):
    folder.outcome.write_text(json.dumps({"exit_code": None, "duration_s": [], "signal": {}, "block": [1]}))
    folder.restarts.write_text('{"lost": [1]}\n')
    wrong = (
        {"said": {}},
        {"finding": [1]},
        {"ranks": 3},
        {"ranks": [{}]},
        {"time": "x"},
        {"finding": "segfault", "said": None},
    )
    wrong += ({"finding": "segfault", "said": "x", "ranks": [], "time": 10**400},)
    folder.findings.write_text("".join(f"{json.dumps(each)}\n" for each in wrong))
    folder.failure(0).write_text('{"kind": "script", "rank": []}')


def deep_texts(folder):
    for path in (folder.outcome, folder.restarts, folder.findings, folder.failure(0)):
        path.write_text("[" * 200_000)


def fifos(folder):
    for path in (folder.outcome, folder.restarts, folder.findings, folder.failure(0)):
        os.mkfifo(path)


def endless_texts(folder):
    for path in (folder.outcome, folder.restarts, folder.findings, folder.failure(0)):
        with path.open("wb") as file:
            file.truncate(1 << 40)


def endless_journal(folder):
    with folder.journal(0).open("r+b") as file:
        file.truncate(1 << 36)


def future(folder):
    with folder.journal(0).open("r+b") as file:
        file.seek(4096)
        file.write(struct.pack("<Q", (1 << 64) - 1))


@promise(
    "shut",
    "A hostile run folder, output, exceptions and names act neither on the terminal nor on memory",
    also=["test_ranks_exceptions_and_names_cannot_act_on_the_terminal"],
)
@pytest.mark.parametrize(
    "spoil",
    [
        evil_texts,
        wrong_kinds,
        pytest.param(deep_texts, marks=pytest.mark.thorough),
        fifos,
        endless_texts,
        endless_journal,
        future,
    ],
)
@pytest.mark.parametrize("command", [watch, diagnose])
def test_a_hostile_run_folder_acts_neither_on_the_terminal_nor_on_memory(tmp_path, spoil, command):
    folder = made(tmp_path / "run")
    spoil(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for options in ((), ("--json",)):
        done = CliRunner().invoke(command, [*options, str(folder.path)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        assert not set(done.output) & set("\x1b\x9b\u202e\r\x07")
        assert "\nstate     ended well" not in done.output
        assert "-" not in done.output.partition("doing")[2] or spoil is not future, "no time before now"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "in KiB: under 1 GiB"


KINDS = {
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "the terminal": lambda path: path.symlink_to("/dev/tty"),
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("put", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("command", [watch, diagnose])
def test_every_file_of_a_run_folder_may_be_something_else(tmp_path, put, command):
    whole = made(tmp_path / "whole")
    files = [path.relative_to(whole.path) for path in whole.path.rglob("*") if path.is_file()]
    own = [name for name, one in vars(RunFolder).items() if isinstance(one, property)]
    files += [getattr(whole, name).relative_to(whole.path) for name in own]
    assert len(files) > 10
    began = time.monotonic()
    for number, file in enumerate(files):
        folder = made(tmp_path / f"{number}")
        path = folder.path / file
        path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(exist_ok=True)
        put(path)
        done = CliRunner().invoke(command, ["--json", str(folder.path)])
        assert isinstance(done.exception, UsageError | SystemExit | None), (file, done.output)
    assert time.monotonic() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20, "in KiB: under 2 GiB"


def test_random_bytes_in_a_journal_are_no_error(tmp_path):
    folder = made(tmp_path / "run")
    with folder.journal(0).open("r+b") as file:
        file.seek(24)
        file.write(os.urandom(60_000))
    assert CliRunner().invoke(watch, ["--once", str(folder.path)]).exit_code == 0


def row(rank, state, *, step=5, doing="end of step 5", place="train.py:7", lasts_s=1.0):
    return Row(rank, 4100 + rank, state, step, doing, lasts_s, place, None, 200 << 20)


IN_EXCHANGE = "in the exchange of gradients of step 6 (train.py:34)"


def many():
    """64 ranks of which one is stopped and one works; the others wait."""
    ranks = [row(rank, State.WAITS, doing=IN_EXCHANGE, place="train.py:34", lasts_s=rank) for rank in range(64)]
    ranks[37], ranks[5] = row(37, State.STOPPED, step=4), row(5, State.WORKS, step=4)
    return tuple(ranks)


def test_ranks_that_do_the_same_come_together_and_those_first_that_hold_others_up():
    groups = grouped(many(), 18)
    assert [[each.rank for each in group.rows] for group in groups[:2]] == [[37], [5]]
    assert len(groups) == 3
    assert groups[2].oldest.rank == 63
    few = tuple(row(rank, state) for rank, state in enumerate([State.WAITS, State.FAILED]))
    assert [[each.rank for each in group.rows] for group in grouped(few)] == [[0], [1]], "a few stay in their order"


@given(st.lists(st.builds(row, st.just(0), st.sampled_from(State), doing=st.sampled_from("abc"))), st.integers(5, 9))
def test_every_rank_is_in_one_group_and_the_groups_have_room(rows, most):
    rows = [replace(each, rank=rank) for rank, each in enumerate(rows)]
    groups = grouped(rows, most)
    assert sorted(each.rank for group in groups for each in group.rows) == list(range(len(rows)))
    assert len(groups) <= most
    assert all(len({each.state for each in group.rows}) == 1 for group in groups)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_table_of_64_ranks_fits_a_terminal_and_keeps_numbers_states_and_lines(width, height):
    view = View(many())
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(table_of(view, height - 5, width))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert len(lines) <= height - 5
    assert re.match(r"37 +stopped +4 .* end of step 5 \(train.py:7\)$", lines[1]), lines
    assert re.match(r"5 +works +4 .* end of step 5 \(train.py:7\)$", lines[2]), lines
    assert re.match(r"0-4, 6-36, 38-63 +62 wait +5 ", lines[3]), lines
    assert "".join(" ".join(line[-60:] for line in lines[3:]).split()).endswith("".join(IN_EXCHANGE.split())), lines
    assert "…" not in "".join(lines)
    assert total_of(view) == "64 ranks: 1 works, 62 wait, 1 stopped"


@pytest.mark.parametrize(("seconds", "text"), [(0.34, "0.3 s"), (62, "62 s"), (720, "12 min"), (11_160, "3.1 h")])
def test_durations_are_short(seconds, text):
    assert duration_text(seconds) == text


def test_ranks_that_start_again_are_seen_with_their_new_journals_and_their_number(tmp_path):
    folder = made(tmp_path / "run", 3, launcher=[os.getpid(), began_ticks(os.getpid())])
    JournalWriter(folder.journal(1)).write(Phase.COMPUTE, "lane 1", 7)
    viewer = Viewer(run_at("run", tmp_path))
    assert (len(viewer.look().rows), viewer.look().is_over) == (3, False), "its launcher is at work"
    assert viewer.look().rows[0].doing == "starting up"
    add_line(folder.restarts, {"restart": 1, "lost": "rank 2", "ranks": 2})
    folder.journal(0).parent.rename(tmp_path / "before")
    assert len(viewer.look().rows) == 3, "what is being made is not looked at"
    folder.journal(0).parent.mkdir()
    for rank in range(2):
        make_ring(folder.journal(rank), rank)
    assert [row.doing for row in viewer.look().rows] == ["starting up"] * 2
    assert len(Viewer(run_at("run", tmp_path)).look().rows) == 2
    folder.outcome.write_text(json.dumps({"exit_code": 0}))
    assert viewer.look().is_over


def test_a_run_whose_launcher_is_gone_is_over(tmp_path):
    made(tmp_path / "run", launcher=[os.getpid(), began_ticks(os.getpid()) - 1])
    assert Viewer(run_at("run", tmp_path)).look().is_over


def test_one_rank_is_not_called_ranks():
    assert total_of(View((row(0, State.WORKS),))) == "1 rank: 1 works"


@pytest.mark.parametrize("launcher", [None, 7, [1], ["1", "2"], [True, 1], [-1, 5], [10**30, 5]])
def test_a_launcher_that_is_none_is_no_error(tmp_path, launcher):
    folder = made(tmp_path / "run", launcher=launcher)
    assert CliRunner().invoke(watch, ["--once", str(folder.path)]).exit_code == 0


def test_a_run_with_a_slow_rank_is_not_stuck():
    assert not is_stuck([])
    assert not is_stuck([Case("busy-rank", "slow 5 s: ...", (1,))])
    assert is_stuck([Case("busy-rank", "slow 5 s: ...", (1,)), Case("stalled-in-data", "stalled 5 s: ...", (2,))])


NODES = [{"node": 0, "host": "a", "ranks": 2}, {"node": 3, "host": "b", "ranks": 1}]


def node_folder(path, *rosters):
    """The folder of a node with rank 2 alone."""
    folder = made(path, ranks=0, nodes=[2, 4])
    folder.plan.write_text(json.dumps({**json.loads(folder.plan.read_text()), "ranks": 1}))
    make_ring(folder.journal(2), 2)
    for roster in rosters:
        add_line(folder.nodes, roster)
    return folder


def test_the_folder_of_a_node_has_the_ranks_of_that_node_by_their_numbers_in_the_run(tmp_path):
    older = {"round": 0, "here": 0, "nodes": NODES[1:]}
    folder = node_folder(tmp_path / "run", older, {"round": 1, "here": 1, "nodes": NODES})
    JournalWriter(folder.journal(2)).write(Phase.COMPUTE, "lane 1", 7, 1, "/home/me/train.py", 31)
    run = run_at("run", tmp_path)
    assert [row.rank for row in Viewer(run).look().rows] == [2]
    assert run.text.endswith("(train.py, rank 2 of 3, on node 3 (host b) of 2 nodes)")
    assert run.roster.elsewhere == (0, 1)
    told = json.loads(CliRunner().invoke(watch, ["--json", str(folder.path)]).output)
    assert (told["node"], told["nodes"]) == ("node 3 (host b)", ["node 0 (host a)", "node 3 (host b)"])


def test_before_the_nodes_have_met_no_rank_is_shown(tmp_path):
    node_folder(tmp_path / "run")
    run = run_at("run", tmp_path)
    assert Viewer(run).look().rows == ()
    assert "its nodes have not met yet" in run.text


def test_a_rank_that_waits_for_another_node_is_in_no_circle_with_its_neighbours(tmp_path):
    here = [{"node": 0, "host": "a", "ranks": 2}, {"node": 1, "host": "b", "ranks": 1}]
    folder = made(tmp_path / "run", nodes=[2, 2], launcher=[os.getpid(), began_ticks(os.getpid())])
    add_line(folder.nodes, {"round": 0, "here": 0, "nodes": here})
    run = run_at("run", tmp_path)
    viewer = Viewer(run)
    for rank in range(2):
        WaitingNote(folder.journal(rank))._write(Waiting(time.monotonic_ns() - 60 * 10**9, frozenset(), "all_reduce"))
    scenes = Scenes("", viewer.journals)
    try:
        pids = dict.fromkeys(range(2), os.getpid())
        elsewhere = {2: RankScene(2, Life.RUNS, None, None)}
        assert [one.holdup.is_circle for one in scenes.judge(pids)[1]] == [True]
        assert scenes.judge(pids, elsewhere=elsewhere)[1] == []
    finally:
        scenes.end()


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_a_damaged_roster_is_none(told):
    assert roster_of([{"nodes": told, "here": 0}]) is None
    assert roster_of([{"nodes": NODES, "here": told}]) is None or told in (0, 1)


def test_another_run_that_takes_the_name_is_shown_from_then_on(tmp_path):
    folder = made(tmp_path / "run")
    live, viewer = LiveRun(folder.path), Viewer(run_at("run", tmp_path))
    assert (len(viewer.look().rows), len(live.state()["ranks"])) == (2, 2)
    shutil.rmtree(folder.path)
    assert live.state()["story"]["status"] == "running"
    assert viewer.look().is_over
    made(tmp_path / "run", 1, launcher=[os.getpid(), began_ticks(os.getpid())])
    os.utime(folder.plan, ns=(7, 7))
    view = viewer.look()
    assert (len(view.rows), view.is_led) == (1, True)
    assert len(live.state()["ranks"]) == 1


def test_the_newest_run_is_found_while_others_vanish(tmp_path, monkeypatch):
    made(tmp_path / "run")
    os.utime(made(tmp_path / "gone").plan, ns=(7, 7))
    listed = Path.iterdir

    def vanishing(path):
        for place in [*listed(path)]:
            yield place
            if place.name == "gone":
                shutil.rmtree(place)

    monkeypatch.setattr(Path, "iterdir", vanishing)
    assert run_at(None, tmp_path).folder.path == tmp_path / "run"


def test_no_line_of_a_block_is_blank_but_indented(tmp_path):
    folder = made(tmp_path / "run")
    block = "FAILED    rank 1\n\n  | Traceback\n\n  log     x"
    folder.outcome.write_text(json.dumps({"exit_code": 1, "duration_s": 3.5, "signal": 0, "block": block}))
    told = CliRunner().invoke(diagnose, [str(folder.path)])
    assert "FAILED    rank 1\n\n    | Traceback\n\n    log     x\n" in told.output
