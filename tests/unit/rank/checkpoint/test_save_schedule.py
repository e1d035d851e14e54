"""When states are saved by themselves, where they are, and which ones stay."""

import pytest

import samebits
from samebits.errors import UsageError
from samebits.protocol.saving import Schedule
from samebits.protocol.state_files.flushed import write_synced
from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import NAME, NOT_FINITE, Manifest, SavedFile
from samebits.protocol.state_files.whole_state import wrong_counters
from samebits.rank.checkpoint.store.store import Store
from samebits.rank.position.epoch_count import EpochCount


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("500steps", Schedule(steps=500)),
        ("1step", Schedule(steps=1)),
        ("20 steps", Schedule(steps=20)),
        ("30s", Schedule(seconds=30.0)),
        ("10min", Schedule(seconds=600.0)),
        ("2h", Schedule(seconds=7200.0)),
        ("epoch", Schedule(epoch=True)),
    ],
)
def test_a_schedule_is_read(text, schedule):
    assert Schedule.parse(text) == schedule


@pytest.mark.parametrize("text", ["0", "5", "0steps", "-3min", "1.5h", "epochs", "", "5 years"])
def test_what_is_no_schedule_is_refused(text):
    with pytest.raises(UsageError, match=r"cannot be read\. Write 500steps, 10min or epoch"):
        Schedule.parse(text)


def test_it_is_due_by_steps_time_or_epoch():
    assert [step for step in range(1, 10) if Schedule(steps=4).is_due(step, 1e9, ends_epoch=True)] == [4, 8]
    assert not Schedule(seconds=60.0).is_due(4, 59.9, ends_epoch=True)
    assert Schedule(seconds=60.0).is_due(5, 60.0, ends_epoch=False)
    assert [Schedule(epoch=True).is_due(3, 0.0, ends_epoch=ends) for ends in (False, True)] == [False, True]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"save_every": "5steps"}, "needs a name"),
        ({"save_every": "5", "name": "exp1"}, "cannot be read"),
        ({"save_every": "5steps", "name": "../exp1"}, "must be a folder's name"),
        ({"save_every": "5steps", "name": ".."}, "must be a folder's name"),
        ({"save_every": "5steps", "name": "exp1", "keep": 0}, "`keep` must be a whole number of at least 1"),
    ],
)
def test_a_mistake_is_refused_before_anything_starts(tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words):
        samebits.init(**options)
    assert list(tmp_path.iterdir()) == []


def save(path, **facts):
    folder, text = StateFolder(path), b"{}"
    folder.begin()
    write_synced(folder.stage / "state.json", text)
    write_synced(folder.stage / NAME, Manifest({"state.json": SavedFile.of(text)}, facts).encode())
    folder.install()


def test_the_newest_states_stay_and_nothing_else_is_touched(tmp_path):
    ring = Store(tmp_path / "states", keep=2)
    assert ring.newest_first() == []
    ring.prune()
    for step in (9, 100, 20):
        save(ring.path(step))
    others = [tmp_path / "states" / name for name in ("step-00000001", "mine", "step-00000200")]
    for other in others:
        other.mkdir()
        (other / "thesis.tex").write_text("mine")
    (others[2] / NAME).write_text("of another program")
    (tmp_path / "states" / "step-00000300").symlink_to(ring.path(100))
    ring.prune()
    assert ring.newest_first() == [ring.path(100), ring.path(20)]
    assert not ring.path(9).exists()
    assert all((other / "thesis.tex").exists() for other in others)


def test_what_somebody_has_put_in_the_way_of_one_removal_stops_no_other(tmp_path):
    ring = Store(tmp_path / "states", keep=1)
    for step in (1, 2, 3):
        save(ring.path(step))
    mine = tmp_path / "states" / ".step-00000002.saving"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    ring.prune()
    assert ring.newest_first() == [ring.path(3), ring.path(2)]
    assert (mine / "thesis.tex").exists()


def test_a_place_inside_an_epoch_is_that_of_the_current_body():
    count = EpochCount()
    for epoch in count.epochs(3):
        count.count_call()
        count.begin_steps()
        assert count.is_first
        if epoch == 1:
            assert count.position(inside=True) == {"loop": 1, "next": 1}
        count.end_steps()
        if epoch == 1:
            assert count.position() == {"loop": 1, "next": 2}


@pytest.mark.parametrize("inside", [3, {"loader": 0}, {"loader": -1, "order": "x", "done": 1, "loop": 1}, "x"])
def test_a_place_that_cannot_be_is_named(inside):
    counters = {
        "step": 1,
        "epoch": 1,
        "num_losses": 1,
        "loss": 0.5,
        "epochs_seen": [],
        "epochs": {"loop": 0, "next": 0},
    }
    whole = {**counters, "loaders": [], "inside": {"loader": 0, "order": "x", "done": 1, "loop": 1}}
    assert wrong_counters(whole) == ""
    assert wrong_counters({**counters, "loaders": []}) == "", "a state that an older samebits wrote"
    assert "its counter inside" in wrong_counters({**whole, "inside": inside})


def test_states_that_are_not_finite_never_evict_the_newest_finite_one(tmp_path):
    ring = Store(tmp_path / "states", keep=2)
    for step, tensor in ((1, ""), (2, ""), (3, "0.weight"), (4, "0.weight"), (5, "0.weight")):
        save(ring.path(step), **({NOT_FINITE: tensor} if tensor else {}))
        ring.prune()
    assert ring.newest_first() == [ring.path(5), ring.path(4), ring.path(2)]
    for step in (6, 7):
        save(ring.path(step))
        ring.prune()
    assert ring.newest_first() == [ring.path(7), ring.path(6)]
