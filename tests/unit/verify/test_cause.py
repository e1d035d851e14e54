"""The usual cause follows from where a difference appears first and what shape it has."""

from itertools import product

import pytest

from samebits.protocol.recording import AT_END
from samebits.verify.cause import Symptoms, usual_cause
from samebits.verify.evidence import ItemAtStep, Kind


def cause(kind: Kind, **known: object) -> str:
    place = ItemAtStep(int(known.pop("step", 1)), f"{kind} {known.pop('item', 'x')}")  # type: ignore[call-overload]
    return usual_cause(Symptoms(place, **{"ranks": (1, 2)} | known))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "known", "words"),
    [
        (Kind.LOSS, {}, "random numbers depend on the rank"),
        (Kind.LOSS, {"step": 5}, "what has no state_dict"),
        (Kind.LOSS, {"ratio": 2.0}, "the loss is multiplied by the number of ranks"),
        (Kind.LOSS, {"ratio": 2.0, "ranks": (2, 4)}, "the loss is multiplied by the number of ranks"),
        (Kind.GRADIENT, {"ratio": 2.0}, "the gradient is multiplied by the number of ranks"),
        (Kind.GRADIENT, {}, "losses are equal but gradients are not"),
        (Kind.VALUE, {}, "averaged over shares of different sizes"),
        (Kind.VALUE, {"ratio": 2.0}, "a sum over ranks"),
        (Kind.VALUE, {"item": "run.sum at train.py:9", "relative": 1e-7}, "floats are added up rank by rank"),
        (Kind.VALUE, {"item": "run.gather at train.py:9", "ratio": 2.0}, "what run.gather was given depends on"),
        (Kind.PARAMETER, {}, "the same gradient is used differently"),
        (
            Kind.PARAMETER,
            {"settings": {"optimizer lr": ("0.1", "0.2")}},
            "optimizer lr depends on the number of ranks: 0.1",
        ),
        (Kind.OPTIMIZER, {}, "settings or state depend on the number of ranks"),
        (Kind.SCRIPT, {}, "updated with values that depend on the ranks"),
        (Kind.BUFFER, {"among_replicas": True, "ranks": (2, 2)}, "a rank wrote buffers of its own"),
        (Kind.PARAMETER, {"among_replicas": True, "ranks": (2, 2)}, "the update is not the same on every rank"),
        (Kind.SCRIPT, {"among_replicas": True, "ranks": (2, 2)}, "from a rank's own samples"),
        (Kind.SCRIPT, {"only_one_side": True}, "makes or skips it depending on the number of ranks"),
        (Kind.SAMPLES, {}, "the data set or its random numbers depend on the rank"),
        (Kind.INITIAL, {}, "the models are built differently"),
        (Kind.AGAIN, {}, "the data set remembers earlier samples"),
        (
            Kind.LOSS,
            {"hands_on": True, "handed_on": ("h (train.py:9)",)},
            "lanes hand on h (train.py:9): one rank gives other bits too",
        ),
        (
            Kind.SCRIPT,
            {"step": AT_END, "among_replicas": True},
            "the code after the last step is to blame: this object",
        ),
        (Kind.GRADIENT, {"only_nan": True, "first_nan": ItemAtStep(3, "loss")}, "The first NaN is at step 3, loss."),
        (Kind.GRADIENT, {"since": "bits.json"}, "the backward computes something different now"),
        (Kind.GRADIENT, {"since": "bits.json", "facts": ("torch 1 there, 2 here",)}, "differ: torch 1 there, 2 here."),
        (Kind.PARAMETER, {"since": "bits.json", "only_one_side": True}, "different parts or names now"),
        (
            Kind.PARAMETER,
            {"since": "bits.json", "step": AT_END},
            "the code after the last step does something different",
        ),
        (Kind.LOSS, {"repeatable": False, "ratio": 2.0}, "not repeatable: run again"),
    ],
)
def test_the_cause_is_named(kind: Kind, known: dict[str, object], words: str) -> None:
    assert words in cause(kind, **known)


COMPARED = [kind for kind in Kind if kind not in (Kind.RESUMED, Kind.OWN, Kind.VARIABLE)]
"""Between numbers of ranks; the others are of `verify --interrupt`."""


def test_every_combination_has_a_sentence() -> None:
    others = ({}, {"step": AT_END}, {"since": "bits.json"}, {"only_nan": True}, {"only_one_side": True})
    for kind, among, ratio, known in product(COMPARED, (False, True), (None, 2.0, 0.5, 3.0), others):
        said = cause(kind, among_replicas=among, ratio=ratio, **known)
        assert said.endswith(".")
        assert said[0].islower()
        assert "{" not in said


def test_only_what_may_come_from_lanes_is_blamed_on_them() -> None:
    def asks(kind: Kind, step: int = 2, **known: object) -> bool:
        return Symptoms(ItemAtStep(step, f"{kind} x"), (1, 2), **known).may_be_handed_on  # type: ignore[arg-type]

    assert asks(Kind.LOSS)
    assert asks(Kind.GRADIENT)
    assert not asks(Kind.LOSS, ratio=2.0)
    assert not asks(Kind.LOSS, step=AT_END)
    assert not asks(Kind.LOSS, since="bits.json")
    assert not asks(Kind.SAMPLES)
