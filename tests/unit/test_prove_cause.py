"""The usual cause follows from where a difference appears first and what shape it has."""

from itertools import product

import pytest

from lockstep.prove.cause import Symptoms, usual_cause
from lockstep.prove.evidence import Kind


def cause(kind: Kind, **known: object) -> str:
    facts = {"step": 1, "ranks": (1, 2), "among_replicas": False}
    return usual_cause(Symptoms(kind, **facts | known))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "known", "words"),
    [
        (Kind.LOSS, {}, "random numbers or samples depend on the rank"),
        (Kind.LOSS, {"ratio": 1.7}, "random numbers or samples depend on the rank"),
        (Kind.LOSS, {"step": 5}, "what has no state_dict"),
        (Kind.LOSS, {"ratio": 2.0}, "the loss is multiplied by the number of ranks"),
        (Kind.LOSS, {"ratio": 0.5}, "the loss is divided by the number of ranks"),
        (Kind.LOSS, {"ratio": 2.0, "ranks": (2, 4)}, "the loss is multiplied by the number of ranks"),
        (Kind.LOSS, {"ratio": 2.0, "ranks": (1, 4)}, "random numbers"),
        (Kind.GRADIENT, {"ratio": 2.0}, "the gradient is multiplied by the number of ranks"),
        (Kind.GRADIENT, {}, "losses are equal but gradients are not"),
        (Kind.BUFFER, {}, "BatchNorm statistics of rank 0"),
        (Kind.VALUE, {}, "averaged over shares of different size"),
        (Kind.VALUE, {"ratio": 2.0}, "a sum over ranks"),
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
        (Kind.LOSS, {"repeatable": False, "ratio": 2.0}, "not repeatable even with itself"),
    ],
)
def test_the_cause_is_named(kind: Kind, known: dict[str, object], words: str) -> None:
    assert words in cause(kind, **known)


@pytest.mark.parametrize(("kind", "among", "ratio"), list(product(Kind, (False, True), (None, 2.0, 0.5, 3.0))))
def test_every_combination_has_a_sentence(kind: Kind, among: bool, ratio: float | None) -> None:
    said = cause(kind, among_replicas=among, ratio=ratio)
    assert said.endswith(".")
    assert said[0].islower()
    assert "{" not in said
