"""Scenarios on ranks that each hold a part of the model only."""

from tests.scripts import corner_cases, embeddings, scenarios

ELSEWHERE = "elsewhere"
"""Instead of digests: no rank can hash the whole model; losses and norms of many steps show as much."""
LOOKS_AT_ABSENT_GRADIENTS = {"frozen_then_unfrozen": "steps", "unused_parameters": "seen"}
"""Which of its results a scenario reads from gradients that another stage has."""


def without_digests(scenario):
    for module in (scenarios, corner_cases, embeddings):
        module.digest_of = lambda *_: ELSEWHERE
    return scenario()
