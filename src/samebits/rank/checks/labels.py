"""What the looks have found labels a run: it is said once, and again beside the bits.

It blocks nothing: a state is saved and a run resumes all the same, but under `--recover exact`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from samebits.errors import UsageError
from samebits.notices import say
from samebits.rank.caller import where
from samebits.rank.checks.held import prepared_of
from samebits.rank.look.frames import assigned_at, read_behind_its_loop
from samebits.rank.look.looks import GRADIENTS, NOT_YET
from samebits.rank.look.verdict import Named
from samebits.rank.position.metrics import keep
from samebits.rank.position.run_state import RunState

MOST_SAID = 3
CARRIED = "no state holds {}, so a resumed run begins with it anew; keep it in run.state, or give it to run.track."
CARRIED_BESIDE = "no state holds {}, so a resumed run begins with it anew; keep it in an object with a state_dict that accelerator.run.track gets."
"""Beside a library's loop, where there is no `run`; so below."""
BEHIND = "the script reads {} behind this loop and no state holds it, so a run that resumes in a later loop ends here; keep it in run.state, of each loop under a name of its own."
OWN_SAMPLES = (
    "fetching samples changes {}, so other ranks and numbers of workers may get other samples. Draw from the global streams of torch, "
    "NumPy and random, which are set for each lane, and keep nothing from one sample to the next."
)
HANDED_ON = "lanes hand on {{}}: bits on other numbers of ranks are not proved; {}, or run samebits verify."
ADVICE = {
    "": "put it together behind the lanes (run.lane_sum, run.lane_cat), or keep a value for each lane (run.per_lane)",
    "generator": "draw from the global streams, or make it in each lane with run.seed(...)",
}
ADVICE_BESIDE = {
    "": "let it follow from the weights and the batch alone, or change it only where accelerator.sync_gradients is true",
    "count": "it counts batches, of which fewer processes take more: count optimizer steps (accelerator.completed_steps, or where "
    "accelerator.sync_gradients is true; state.global_step of the Trainer)",
    "generator": "draw from the global streams (torch.randn without a generator)",
}
"""By the kind of a name."""
COPIED = (
    "{} was changed inside an epoch, and loader workers hold copies of the data set from its beginning: with and without "
    "workers the bits differ; change it between epochs (not with persistent_workers), or change the batch in its lane."
)


def begin_looks(run: RunState) -> None:
    """A loop's first step is about to begin. Not collective.

    Until the looks are over nobody knows what a state lacks; it surely lacks what the script reads behind the loop before.
    """
    looks = run.loop_state.looks
    new, looks.behind_last = [one for one in looks.behind_last if one not in looks.behind], []
    if new or not looks.has_begun:
        looks.has_begun = True
        looks.behind += new
        _keep(run)
        _say_each(run, new, BEHIND, "the script reads {} behind loops too.")


def leave_loop(run: RunState, *, is_inner: bool = False) -> None:
    """The turns of a loop are over; `is_inner`: in the body of another one, which has more. Not collective."""
    if not (
        is_inner or run.loop_state.prepared.even_lanes
    ):  # a library's loop says itself what happens behind its epochs
        run.loop_state.looks.behind_last = [Named(name, where()) for name in sorted(read_behind_its_loop() - {""})]


def look_after_step(run: RunState) -> None:
    """Look between two steps; what was found ranks tell each other in the next pass, or at the end. Not collective."""
    looks = run.loop_state.looks
    for one in run.loop_state.prepared.loaders:
        if one.changed and not looks.copied:
            looks.copied.append(f"the data set's {one.changed}")
            _say(run, _sentence(Named(looks.copied[0], assigned_at(one.changed)), COPIED))
    is_last = not looks.is_over and looks.after_step(lambda: prepared_of(run, run.loop_state, between_lanes=False))
    if is_last and run.components.transport.world_size == 1:
        share_looks(run, [looks.found()])


def label_samples(run: RunState) -> None:
    """Say what is new of what data sets keep from one sample to the next, on this rank. Not collective."""
    looks = run.loop_state.looks
    new = [one for loader in run.loop_state.prepared.loaders for one in loader.kept() if one not in looks.own_samples]
    looks.own_samples += new
    # A state lacks it too; where the rank fetches itself the looks have seen the data set change.
    if not any(one.name.endswith(", the data set") for one in looks.carried):
        looks.carried += new
    for one in new[:MOST_SAID]:
        _say(run, _sentence(one, OWN_SAMPLES))


def share_looks(run: RunState, gathered: Sequence[list[Any]]) -> None:
    """Put together what the ranks have found, and say it once. Not collective."""
    looks = run.loop_state.looks
    if looks.has_begun and not looks.is_shared and (found := [one for one in gathered if one]):
        looks.share(found)
        say_names(run)


def refuse_loop_without_turn(run: RunState) -> None:
    """Raise `UsageError` where a run resumes behind the last turn of a loop whose names a script reads there. Collective."""
    names = sorted(read_behind_its_loop() - {""})
    found = run.components.transport.all_gather_object(names, "names behind the loop", where())
    if any(found):
        raise UsageError(
            f"The run resumes after the last iteration of a loop, where the script reads {min(filter(None, found))[0]!r}, which no state has.",
            "Keep it in run.state, or choose another name for a new run.",
        )


def look_around_lane(run: RunState, *, is_end: bool) -> None:
    """Look where a lane begins, or ends, while looks are not over. Not collective."""
    looks = run.loop_state.looks
    (looks.leave_lane if is_end else looks.enter_lane)(lambda: prepared_of(run, run.loop_state, between_lanes=True))


def note_gradients(run: RunState, *, is_first: bool) -> None:
    """A pass begins, the first of its step or another: note which gradients of an earlier step are still there."""
    looks = run.loop_state.looks
    parameters = (one for model in run.loop_state.prepared.models for one in model.parameters())
    there = {id(one) for one in parameters if one.grad is not None}
    looks.kept = there if is_first else looks.kept & there


def label_gradients(run: RunState) -> None:
    """Name, at the end of a body of `run.epochs`, gradients that the next step adds to: a state of here lacks them."""
    looks = run.loop_state.looks
    if not looks.accumulates or GRADIENTS in looks.carried:
        return
    if any(parameter.grad is not None for model in run.loop_state.prepared.models for parameter in model.parameters()):
        looks.carried.append(GRADIENTS)
        _keep(run)
        _say(run, _sentence(GRADIENTS, CARRIED))


def say_names(run: RunState) -> None:
    """Say once what was found, with lines, and what to write."""
    loop_state, looks = run.loop_state, run.loop_state.looks
    _keep(run)
    is_resumed = loop_state.resumption.has_resumed
    if is_resumed and (names := names_without(run)):
        _say(run, f"the run has resumed without {', '.join(names)}, which no state holds and which begins anew.")
    elif run.components.states.is_inside and not is_resumed:
        # What lanes hand on is said once, and below.
        said = {GRADIENTS.name, *(one.name for one in (*looks.handed_on, *looks.own_samples))}
        # What is said of samples says it with what it does to other ranks.
        others = [one for one in looks.carried if not (looks.own_samples and one.name.endswith(", the data set"))]
        form = CARRIED if looks.counts_lanes else CARRIED_BESIDE
        _say_each(run, [one for one in others if one.name not in said], form, "no state holds {} either.")
    advice = ADVICE if looks.counts_lanes else ADVICE_BESIDE
    for kind in dict.fromkeys(one.kind for one in looks.handed_on):
        form = HANDED_ON.format(advice.get(kind, advice[""]))
        _say_each(run, [one for one in looks.handed_on if one.kind == kind], form, "lanes hand on {} too.")


def _say_each(run: RunState, found: list[Named], form: str, rest: str) -> None:
    for one in found[:MOST_SAID]:
        _say(run, _sentence(one, form))
    if more := found[MOST_SAID:]:
        _say(run, rest.format(", ".join(f"{one.name} ({one.where})" if one.where else one.name for one in more)))


def _sentence(one: Named, form: str) -> str:
    return (f"{one.where}: " if one.where else "") + form.format(one.name)


def names_without(run: RunState) -> list[str]:
    """What a run that has resumed did so without; empty for any other."""
    return run.loop_state.lacks if run.loop_state.resumption.has_resumed else []


def _keep(run: RunState) -> None:
    """Report to the launcher and to later starts of the ranks, on each node."""
    looks, lacks = run.loop_state.looks, run.loop_state.lacks
    sentences = [_sentence(one, BEHIND) for one in looks.behind]
    form = CARRIED if looks.counts_lanes else CARRIED_BESIDE
    sentences += [_sentence(one, form) for one in looks.carried] or ([f"no state holds {NOT_YET}."] if lacks else [])
    if run.config.folder is not None and run.config.environment.position.local_rank == 0:
        keep(run.config.folder.unsaved, json.dumps({"names": lacks, "sentences": sentences}), run.components.step_timer)


def _say(run: RunState, text: str) -> None:
    if run.is_users_main:
        say(text)
