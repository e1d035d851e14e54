"""Samples that depend on what was fetched before them: said once, and again beside the bits. It blocks nothing."""

from __future__ import annotations

from samebits.notices import say
from samebits.rank.run.run_state import RunState

MOST_SAID = 3
SENTENCE = (
    "fetching samples changes {}, so other ranks and numbers of workers may get other samples. Draw from the global streams of torch, "
    "NumPy and random, which are set for each lane, and keep nothing from one sample to the next."
)


def label_samples(run: RunState) -> None:
    """Say what is new of that, on this rank. Not collective."""
    state = run.loop_state
    new = [one for loader in state.prepared.loaders for one in loader.kept() if one not in state.own_samples]
    state.own_samples += new
    # A state lacks it too; where the rank fetches itself the looks have seen the data set change.
    if not any(one.name.endswith(", the data set") for one in state.looks.carried):
        state.looks.carried += new
    for one in new[:MOST_SAID] if run.is_users_main else ():
        say((f"{one.where}: " if one.where else "") + SENTENCE.format(one.name))
