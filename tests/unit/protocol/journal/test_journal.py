"""The black box: what was written can be read by anybody, also while it is written and after the writer died."""

import os
import signal
import stat
import time

from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import SAMPLE_NOTE, PeerLost, UsageError
from samebits.protocol.journal.failure import FailureKind, describe, read_failure, write_failure
from samebits.protocol.journal.gauges import Gauges, pack, unpack
from samebits.protocol.journal.ring import MAX_TEXTS, JournalReader, JournalWriter, Phase, make_ring
from samebits.protocol.journal.signals import Asking


def ring(tmp_path, **options):
    path = tmp_path / "rank.ring"
    make_ring(path, rank=3, **options)
    return path


def test_the_newest_records_come_back_in_order(tmp_path):
    path = ring(tmp_path, capacity=16)
    writer, reader = JournalWriter(path), JournalReader(path)
    assert reader.last() is None
    for step in range(1, 41):
        writer.write(Phase.COMPUTE, f"lane {step % 3}", step, 1, "/home/me/train.py", 100 + step)
    records = reader.tail(100)
    assert [record.step for record in records] == list(range(25, 41))
    assert records[-1] == reader.last()
    assert (records[-1].operation, records[-1].file, records[-1].line) == ("lane 1", "/home/me/train.py", 140)
    assert reader.pid == os.getpid()


def test_the_launcher_asks_and_the_rank_answers_beside_the_records(tmp_path):
    path = ring(tmp_path)
    writer, rank, launcher = JournalWriter(path), Asking(path), Asking(path)
    assert (launcher.listens, rank.asked, launcher.saved) == (False, 0, None)
    rank.listen(True)
    launcher.ask(signal.SIGTERM)
    rank.answer(0)
    writer.gauges(Gauges(step=7))
    writer.lost("a line")
    assert (launcher.listens, rank.asked, launcher.saved) == (True, signal.SIGTERM, 0)
    assert (JournalReader(path).gauges().step, JournalReader(path).lost()) == (7, ["a line"])


def test_only_the_owner_can_read_it(tmp_path):
    assert stat.S_IMODE(ring(tmp_path).stat().st_mode) == 0o600


def test_a_second_writer_goes_on_where_the_first_stopped(tmp_path):
    path = ring(tmp_path)
    JournalWriter(path).write(Phase.DATA, "fetch", 1, 1, "a.py", 1)
    JournalWriter(path).write(Phase.UPDATE, "error", 2, 1, "b.py", 2)
    first, second = JournalReader(path).tail(9)
    assert (first.operation, first.file, second.operation, second.file) == ("fetch", "a.py", "error", "b.py")


def test_a_full_table_of_texts_loses_texts_and_not_records(tmp_path):
    path = ring(tmp_path)
    writer = JournalWriter(path)
    for number in range(MAX_TEXTS + 50):
        writer.write(Phase.SCRIPT, f"operation {number}", number)
    assert JournalReader(path).last().step == MAX_TEXTS + 49


def test_a_killed_writer_leaves_its_last_record(tmp_path):
    path = ring(tmp_path)
    if (pid := os.fork()) == 0:
        JournalWriter(path).write(Phase.EXCHANGE, "gradients", 7, 1, "train.py", 12)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert JournalReader(path).last().step == 7


@given(st.builds(Gauges, **{name: st.integers(0, 2**60) for name in ("epoch", "step", "samples", "data_ns")}))
def test_gauges_survive_packing(gauges):
    assert pack(unpack(pack(gauges))) == pack(gauges)


def test_gauges_and_notes_are_replaced_whole(tmp_path):
    path = ring(tmp_path)
    writer, reader = JournalWriter(path), JournalReader(path)
    assert (reader.gauges().step, reader.note()) == (0, {})
    writer.gauges(Gauges(step=3, loss=0.5))
    writer.note({"accuracy": 0.97})
    writer.note({"too long": "x" * 5000})
    assert (reader.gauges().step, reader.gauges().loss, reader.note()) == (3, 0.5, {"accuracy": 0.97})


def test_writing_costs_about_half_a_microsecond(tmp_path, record_property):
    writer = JournalWriter(ring(tmp_path))
    started = time.perf_counter_ns()
    for step in range(10_000):
        writer.write(Phase.DATA, "fetch", step, 1, "train.py", 12)
    record_property("ns per record", (time.perf_counter_ns() - started) / 10_000)


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_a_failure_says_line_kind_and_sample(tmp_path):
    error = raised(ValueError("broken picture"))
    error.add_note(SAMPLE_NOTE.format(index=1234))
    failure = describe(2, error, script=tmp_path.__class__(__file__), hidden=())
    write_failure(tmp_path / "failure.json", failure)
    read = read_failure(tmp_path / "failure.json")
    assert read == failure
    assert (read.rank, read.kind, read.error, read.sample) == (
        2,
        FailureKind.SCRIPT,
        "ValueError: broken picture",
        "1234",
    )
    assert read.file == __file__
    assert read_failure(tmp_path / "none.json") is None


def test_consequences_of_another_ranks_end_are_told_from_causes(tmp_path):
    kinds = {
        PeerLost("gone"): FailureKind.PEER,
        RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection closed by peer"): FailureKind.PEER,
        UsageError("wrong", "Use x."): FailureKind.USAGE,
        RuntimeError("shape mismatch"): FailureKind.SCRIPT,
    }
    for error, kind in kinds.items():
        assert describe(0, raised(error), tmp_path, ()).kind is kind


def test_a_failure_in_a_loader_worker_is_the_data_sets_own(tmp_path):
    """torch raises the worker's exception again with the whole traceback as its message."""
    script = tmp_path / "train.py"
    text = (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        f'  File "/usr/lib/torch/worker.py", line 374, in _worker_loop\n    data = fetch()\n'
        f'  File "{script}", line 6, in __getitem__\n    raise ValueError("broken picture")\n'
        f"ValueError: broken picture\n{SAMPLE_NOTE.format(index=37)}\n"
    )
    failure = describe(1, raised(ValueError(text)), script, ())
    assert failure.error == "ValueError: broken picture"
    assert (failure.file, failure.line, failure.sample) == (str(script), 6, "37")


def test_the_error_is_one_line(tmp_path):
    assert describe(0, raised(ValueError("first\nsecond")), tmp_path, ()).error == "ValueError: first"
