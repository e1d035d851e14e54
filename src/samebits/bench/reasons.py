"""What the numbers of a bench mean, in sentences: a pure function over the results.

Which is fastest, whether one process with all cores does better than ranks, why a configuration is slower than one rank,
and whose bits are whose. Nothing is concluded that the numbers do not show.
"""

from __future__ import annotations

from collections.abc import Iterator

from samebits.bench.measures import Round, explain_losses, ideal_speed_up, losses
from samebits.bench.results import (
    AS_TORCH,
    CLEAR,
    DIFFERS,
    NOT_BY_DESIGN,
    OTHER_THREADS,
    REFERENCE,
    Measured,
    Results,
    is_faster,
    ratio,
)
from samebits.protocol.arithmetic import why_not_exact
from samebits.protocol.layout.mesh import STAGED

BUSY = 0.1
"""If one rank alone varies by more than this, the machine has other work."""
WITHOUT_EXCHANGE = {
    "dp": "each forward copies the model to its replicas, and their threads share one Python lock. ddp has neither.",
    "hogwild": "it exchanges no gradients, and these numbers do not show what it waits for.",
}
"""Strategies whose ranks hand no gradients around, and what slows them down."""


def sentences(results: Results) -> Iterator[str]:
    """Everything there is to say, the most important first."""
    yield from _fastest(results)
    for one in results.whole():
        if one.configuration.strategy in STAGED:
            yield from _staged(results, one)
        elif one.configuration.ranks > 1:
            yield from _slower(results, one)
    yield from _bits(results)
    for one in results.measured:
        if one.failed:
            yield f"{_name(one, results)} failed: {one.failed}"


def _fastest(results: Results) -> Iterator[str]:
    base = results.base
    if base is None:
        return
    if base.speed.relative > BUSY:
        yield (
            f"One rank alone varied by ±{base.speed.relative:.0%}: something else is using this machine, and "
            f"differences of that size mean nothing."
        )
    times = {id(one): up.median for one in results.whole() if (up := results.speed_up(one)) is not None}
    best = max(results.whole(), key=lambda one: times[id(one)])
    if best is base:
        yield f"Nothing is faster than one rank with {base.threads} thread{'s' * (base.threads != 1)}."
    elif not is_faster(best, base):
        yield (
            f"Nothing is clearly faster than one rank: {_name(best, results)} took {1 / times[id(best)]:.2f} times as "
            f"long, and the rounds vary by as much."
        )
    else:
        equal = [one for one in results.whole() if one is not best and not is_faster(best, one)]
        beside = f"; not clearly slower: {', '.join(_name(one, results) for one in equal)}" if equal else ""
        yield f"Fastest: {_name(best, results)}, {times[id(best)]:.2f} times as fast as one rank{beside}."
    yield from _all_cores(results, base)


def _all_cores(results: Results, base: Measured) -> Iterator[str]:
    """Whether one process with all cores does better than ranks."""
    all_cores = results.all_cores
    several = [one for one in results.whole() if one.configuration.ranks > 1]
    if all_cores is None or not several:
        return
    ranks = max(several, key=lambda one: ratio(one, base).median)
    if is_faster(all_cores, ranks) and is_faster(all_cores, base):
        yield (
            f"One process with all {results.cores} cores is {ratio(all_cores, ranks).median - 1:.0%} faster than "
            f"{_name(ranks, results)}: for speed alone, start it with -n 1 --threads {results.cores}. Its bits differ, "
            f"because the number of threads changes them."
        )


def _slower(results: Results, one: Measured) -> Iterator[str]:
    """Why several ranks, or several replicas, gain nothing."""
    base = results.base
    if base is None or not is_faster(base, one):
        return
    threads = one.configuration.ranks * one.threads
    if results.device == "cpu" and threads > results.cores:
        yield (
            f"{_name(one, results)} is slower than one rank: {threads} threads share {results.cores} cores. "
            f"Use at most {max(results.cores // one.threads, 1)} ranks here."
        )
        return
    if one.configuration.strategy in WITHOUT_EXCHANGE:
        yield f"{_name(one, results)} is slower than one rank: {WITHOUT_EXCHANGE[one.configuration.strategy]}"
        return
    share = one.shares()["exchange"]
    # Then the exchange is not why, and these numbers do not show what is.
    if share < CLEAR:
        return
    yield (
        f"{_name(one, results)} is slower than one rank: {share:.0%} of a step is the exchange of gradients, "
        f"{one.step_s * share * 1e3:.1f} ms. A larger batch has more to compute for each exchange."
    )


def _staged(results: Results, one: Measured) -> Iterator[str]:
    """How far a model in stages is from what is possible, and why."""
    speed_up = results.speed_up(one)
    if speed_up is None:
        return
    ranks, name = one.configuration.ranks, _name(one, results)
    gain = f"{name} is {speed_up.median:.2f} times as fast as one rank"
    if results.base is not None and not is_faster(one, results.base):
        slower = "slower than one rank" if is_faster(results.base, one) else "about as fast as one rank"
        gain = f"{name} is {slower} ({speed_up.median:.2f} times its speed)"
    if one.configuration.strategy == "model_parallel":
        yield (
            f"{gain}: only one of its {ranks} ranks works at a time. It makes room for a larger model; pipeline is for "
            f"speed."
        )
        return
    ideal = ideal_speed_up(ranks, one.lanes) if ranks > 1 else 1.0
    yield f"{gain}; {ranks} equal stages with {one.lanes} micro-batches could reach {ideal:.2f} times."
    yield from _lost(one)
    yield from _cut(results, one)


def _lost(one: Measured) -> Iterator[str]:
    stages = _middle(one).stages
    found = losses(stages, one.lanes)
    if found is not None:
        yield f"  {explain_losses(found, len(stages), one.lanes)}"


def _cut(results: Results, one: Measured) -> Iterator[str]:
    """What cutting the batch costs on its own: the same lanes on one rank."""
    base = results.base
    for other in results.whole():
        configuration = other.configuration
        if configuration.strategy == "single" and not configuration.all_cores and other.lanes == one.lanes:
            if base is None or other is base:
                return
            cost = other.step_s / base.step_s - 1
            if is_faster(base, other):
                yield (
                    f"  Cut into {one.lanes} micro-batches, the same step takes one rank {cost:.0%} longer: small "
                    f"batches use a core less efficiently."
                )
            return


def _bits(results: Results) -> Iterator[str]:
    for one in results.whole():
        found, strategy = results.exactness(one), one.configuration.strategy
        if found == DIFFERS:
            if not one.bits:
                yield f"{_name(one, results)} differs from itself: its rounds gave different bits."
            else:
                yield f"{_name(one, results)} differs from one rank with the same lanes: samebits verify shows where."
        elif found == REFERENCE and not one.bits:
            yield (
                f"{_name(one, results)} differs from itself: its rounds gave different bits. samebits verify "
                f"shows where."
            )
        elif found in (AS_TORCH, NOT_BY_DESIGN):
            yield f"{why_not_exact(strategy).rstrip('.')}."
    if any(results.exactness(one) == OTHER_THREADS for one in results.whole()):
        yield "other threads: the number of threads changes the bits of CPU kernels, so there is nothing to compare with."


def _name(one: Measured, results: Results) -> str:
    """The title, with the lanes where another configuration has the same title."""
    alike = sum(other.title == one.title for other in results.measured)
    return f"{one.title} ({one.lanes} lane{'s' * (one.lanes != 1)})" if alike > 1 else one.title


def _middle(one: Measured) -> Round:
    """The round whose median step is in the middle."""
    return sorted(one.rounds, key=lambda each: each.step_s)[(len(one.rounds) - 1) // 2]
