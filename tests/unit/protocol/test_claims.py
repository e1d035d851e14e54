"""The last lines of a run: what is claimed of its bits. Each row is a run."""

import pytest

from samebits.protocol.claims import BitsFacts, claims

BITS = "sha256:3f9a" + 60 * "0"


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ({}, [("3f9a00000000", "with 1 lane and 1 thread")]),
        ({"lanes": 4}, [("3f9a00000000", "with 4 lanes and 1 thread; other numbers of ranks: not proved yet")]),
        ({"lanes": 4, "proved": "on 1 and 2 ranks over 3 steps"}, [("3f9a00000000", "with 4 lanes and 1 thread; proved on 1 and 2 ranks over 3 steps")]),
        ({"lanes": 4, "ranks_are_fixed": True}, [("3f9a00000000", "with 4 lanes and 1 thread")]),
        ({"lanes": 4, "ranks_divide": True}, [("3f9a00000000", "with 4 lanes and 1 thread; other numbers of ranks that divide 4: not proved yet")]),
        ({"lanes": 4, "is_exact": False}, [("3f9a00000000", "another run may give others")]),
        ({"lanes": 2, "threads": 3, "portable_torch": "2.13.0"}, [("3f9a00000000", "on any x86-64 with AVX2 (torch 2.13.0, 2 lanes, 3 threads); other numbers of ranks: not proved yet")]),
        ({"lanes": 4, "handed_on": ["total (train.py:14)"]}, [
            ("3f9a00000000", "with 4 lanes and 1 thread; other numbers of ranks: not proved yet"),
            ("hand on total (train.py:14): lanes elsewhere may get something else", ""),
        ]),
        ({"lanes": 4, "copied": ["Boxes.size"]}, [("3f9a00000000", "of these loader workers alone: Boxes.size was changed inside an epoch")]),
        ({"lanes": 4, "without": ["scale"], "uncovered": ["evaluations"]}, [
            ("3f9a00000000", "of this run alone: it resumed without something"),
            ("without scale, which no state holds: it began anew", ""),
        ]),
        ({"unread": ["a", "b", "c", "d", "e"]}, [("3f9a00000000", "with 1 lane and 1 thread"), ("a, b, c, d and 1 more: no look could read it; where it changes, a lane or a resumed run may get something else", "")]),
        ({"uncovered": ["EMA", "evaluations"]}, [("3f9a00000000", "with 1 lane and 1 thread"), ("the weights that were prepared; not EMA, evaluations", "")]),
    ],
)  # fmt: skip
def test_what_is_claimed(facts, lines):
    assert [(text, detail) for _, text, detail in claims(BitsFacts(BITS, **facts))] == lines


@pytest.mark.parametrize("proved", ["", "on 1 and 2 ranks"])
def test_a_run_that_resumed_without_something_claims_nothing_of_ranks(proved):
    for _, text, detail in claims(BitsFacts(BITS, 4, proved=proved, without=("scale",))):
        assert "ranks" not in text + detail


def test_a_folder_that_anybody_may_have_written_gives_facts_all_the_same():
    facts = BitsFacts.of(
        {"bits": 3, "lanes": "x", "without": {"a": 1}, "handed_on": [1, None]}, {"arithmetic": [], "fingerprint": 7}
    )
    assert (facts.digest, facts.lanes, facts.without, facts.handed_on) == ("3", 1, (), ("1", "None"))
    assert claims(facts)
