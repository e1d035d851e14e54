"""Records go through JSON and come back equal, or are refused with the place that does not fit."""

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.protocol.nursery_messages import Message
from samebits.protocol.records import plain, restored


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    number: int
    share: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    colour: Colour
    folder: Path
    inner: Inner | None
    rows: tuple[tuple[float, ...], ...]
    pair: tuple[int, str]
    names: list[str] = field(default_factory=list)
    sizes: Sequence[int] = ()
    counts: dict[str, int] = field(default_factory=dict)
    flag: bool = False
    anything: Any = None


FLOATS = st.floats(allow_nan=False)
INNER = st.builds(Inner, st.integers(), FLOATS)
OUTER = st.builds(
    Outer,
    st.text(),
    st.sampled_from(Colour),
    st.sampled_from([Path("a/b"), Path("/")]),
    st.none() | INNER,
    st.lists(st.lists(FLOATS).map(tuple)).map(tuple),
    st.tuples(st.integers(), st.text()),
    st.lists(st.text()),
    st.lists(st.integers()).map(tuple),
    st.dictionaries(st.text(), st.integers()),
    st.booleans(),
    st.none() | st.integers() | st.text(),
)


@given(OUTER)
def test_a_record_comes_back_equal(outer):
    assert restored(Outer, json.loads(json.dumps(plain(outer)))) == outer


GOOD = plain(Outer("a", Colour.RED, Path("b"), Inner(1), ((1.0,),), (1, "x")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 1}, "Outer.name must be str, but is 1"),
        ({"colour": "green"}, "'green' is not a valid Colour"),
        ({"folder": None}, "Outer.folder must be Path, but is None"),
        ({"folder": 3}, "Outer.folder must be Path, but is 3"),
        ({"inner": {"number": "1"}}, "Outer.inner.number must be int, but is '1'"),
        ({"inner": {"number": True}}, "Outer.inner.number must be int, but is True"),
        ({"inner": {}}, "Outer.inner needs number, but is {}"),
        ({"rows": [["1"]]}, "Outer.rows must be float, but is '1'"),
        ({"rows": "12"}, "Outer.rows must be a list, but is '12'"),
        ({"pair": [1]}, r"Outer.pair must have 2 entries, but is \[1\]"),
        ({"counts": {"a": "b"}}, "Outer.counts.a must be int, but is 'b'"),
        ({"counts": []}, r"Outer.counts must be an object, but is \[\]"),
        ({"flag": 1}, "Outer.flag must be bool, but is 1"),
        ({"other": 1}, "Outer needs colour, folder, inner, name, pair, rows, but is"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(change, words):
    with pytest.raises(ValueError, match=words):
        restored(Outer, {**GOOD, **change})


def test_what_is_missing_has_its_default_or_is_refused():
    assert restored(Inner, {"number": 1}) == Inner(1, 0.5)
    for data in ({}, [], None, "number"):
        with pytest.raises(ValueError, match="Inner needs number"):
            restored(Inner, data)


@pytest.mark.parametrize(
    "name",
    [
        *(f"protocol.nursery_messages.{kind.__name__}" for kind in get_args(Message)),
        *("protocol.environment.RankSettings", "protocol.meeting_place.MeetingPlace", "protocol.rank_task.RankTask"),
        *("protocol.journal.failure.Failure", "protocol.journal.signals.News", "launcher.nodes.roster.NodeRecord"),
        *("launcher.supervise.all_nodes.NodeEnd", "launcher.recovery.RestartAll", "launcher.recovery.Stop"),
        *("launcher.doctor.torch_facts.TorchFacts", "rank.transport.local.rendezvous.RankProcess"),
        *("rank.checkpoint.store.writer_handle.Order", "rank.strategy.stages.cutting.model_cut.Stage"),
    ],
)
def test_every_record_has_hints_that_can_be_read(name):
    module, _, kind = f"samebits.{name}".rpartition(".")
    with pytest.raises(ValueError, match=f"{kind} needs"):
        restored(getattr(importlib.import_module(module), kind), None)
