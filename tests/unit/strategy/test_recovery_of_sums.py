"""What ranks tell of sums that a death has broken, and what follows: everything has one holder, and nothing two."""

import json
import random

from lockstep.strategy.replica.arena import Segment
from lockstep.strategy.replica.recovery import (
    ABLE,
    UNABLE,
    AgreedRecovery,
    Recovery,
    Summed,
    agreed_recovery,
    holders,
    joined,
)


def test_segments_side_by_side_are_told_as_one():
    segments = [Segment(0, 64, 64), Segment(1, 0, 5), Segment(0, 0, 64), Segment(0, 192, 1)]
    assert joined(segments) == [Segment(0, 0, 128), Segment(0, 192, 1), Segment(1, 0, 5)]
    assert joined([]) == []


def test_the_first_rank_that_has_a_result_hands_it_around():
    told = [[], [Segment(0, 10, 10)], [Segment(0, 0, 30), Segment(1, 0, 4)]]
    assert holders(told) == [
        Summed(2, Segment(0, 0, 10)),
        Summed(1, Segment(0, 10, 10)),
        Summed(2, Segment(0, 20, 10)),
        Summed(2, Segment(1, 0, 4)),
    ]


def test_every_element_that_a_rank_has_gets_the_first_of_its_holders():
    draw = random.Random(5)
    for _ in range(200):
        told = []
        for _ in range(draw.randint(1, 4)):
            bounds = sorted(draw.sample(range(60), 2 * draw.randint(0, 4)))
            told.append([Segment(0, start, end - start) for start, end in zip(bounds[::2], bounds[1::2], strict=True)])
        has = [{e for one in segments for e in range(one.offset, one.offset + one.size)} for segments in told]
        expected = {e: min(r for r, known in enumerate(has) if e in known) for e in set().union(*has)}
        found = [
            (e, one.holder)
            for one in holders(told)
            for e in range(one.segment.offset, one.segment.offset + one.segment.size)
        ]
        assert sorted(found) == sorted(expected.items())


def test_sums_are_written_over_their_partials_only_where_every_rank_could_recover_them():
    told = [Recovery(True), Recovery(False, [Segment(0, 0, 8)])]
    told = json.loads(json.dumps([one.encode() for one in told]))
    assert agreed_recovery(told) == AgreedRecovery(False, [Summed(1, Segment(0, 0, 8))])
    assert agreed_recovery([ABLE.encode(), ABLE.encode()]) == AgreedRecovery(True)
    assert agreed_recovery([ABLE.encode(), UNABLE.encode()]) == AgreedRecovery(False)
