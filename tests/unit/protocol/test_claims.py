"""The last lines of a run: what is claimed of its bits. Each row is a run."""

import pytest

from samebits.protocol.claims import BitsFacts, claims

BITS = "sha256:3f9a" + 60 * "0"
HOW = {"to_prove": "samebits verify train.py"}
PROVED = {"proved": "proved on 1, 2, 4 ranks, 28 Nov"}


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ({}, [("3f9a00000000", "with 1 lane and 1 thread")]),
        ({"lanes": 4}, [("3f9a00000000", "with 4 lanes and 1 thread")]),
        ({"lanes": 4, **HOW}, [("3f9a00000000", "with 4 lanes and 1 thread; not proved yet: samebits verify train.py")]),
        ({"lanes": 4, **HOW, **PROVED}, [("3f9a00000000", "with 4 lanes and 1 thread; proved on 1, 2, 4 ranks, 28 Nov")]),
        ({"lanes": 4, **HOW, "ranks_are_fixed": True}, [("3f9a00000000", "with 4 lanes and 1 thread")]),
        ({"lanes": 1, **HOW}, [("3f9a00000000", "with 1 lane and 1 thread")]),
        ({"lanes": 4, **HOW, "is_exact": False}, [("3f9a00000000", "another run may give others")]),
        ({"lanes": 2, "threads": 3, "portable_torch": "2.13.0", **HOW}, [("3f9a00000000", "on any x86-64 with AVX2 (torch 2.13.0, 2 lanes, 3 threads); not proved yet: samebits verify train.py")]),
        ({"lanes": 4, **HOW, "handed_on": ["total (train.py:14)"]}, [
            ("3f9a00000000", "with 4 lanes and 1 thread"),
            ("hand on total (train.py:14): lanes elsewhere may get something else", ""),
        ]),
        ({"lanes": 4, **PROVED, "own_samples": ["cache (train.py:3)"]}, [
            ("3f9a00000000", "with 4 lanes and 1 thread; proved on 1, 2, 4 ranks, 28 Nov"),
            ("depend on cache (train.py:3): other ranks and workers may get others", ""),
        ]),
        ({"lanes": 4, **HOW, "copied": ["Boxes.size"]}, [("3f9a00000000", "of these loader workers alone: Boxes.size was changed inside an epoch")]),
        ({"lanes": 4, **HOW, "without": ["scale"], "uncovered": ["evaluations"]}, [
            ("3f9a00000000", "of this run alone: it resumed without something"),
            ("without scale, which no state holds: it began anew", ""),
        ]),
        ({"unread": ["a", "b", "c", "d", "e"]}, [("3f9a00000000", "with 1 lane and 1 thread"), ("a, b, c, d and 1 more: no look could read it; where it changes, a lane or a resumed run may get something else", "")]),
        ({"uncovered": ["EMA", "evaluations"]}, [("3f9a00000000", "with 1 lane and 1 thread"), ("the weights that were prepared; not EMA, evaluations", "")]),
    ],
)  # fmt: skip
def test_what_is_claimed(facts, lines):
    assert [(text, detail) for _, text, detail in claims(BitsFacts(BITS, **facts))] == lines


@pytest.mark.parametrize("proved", ["", "proved on 1, 2 ranks, 28 Nov"])
def test_a_run_that_resumed_without_something_claims_nothing_of_ranks(proved):
    for _, text, detail in claims(BitsFacts(BITS, 4, proved=proved, without=("scale",))):
        assert "ranks" not in text + detail


def test_a_folder_that_anybody_may_have_written_gives_facts_all_the_same():
    facts = BitsFacts.of(
        {"bits": 3, "lanes": "x", "without": {"a": 1}, "handed_on": [1, None]}, {"arithmetic": [], "fingerprint": 7}
    )
    assert (facts.digest, facts.lanes, facts.without, facts.handed_on) == ("3", 1, (), ("1", "None"))
    assert claims(facts)
