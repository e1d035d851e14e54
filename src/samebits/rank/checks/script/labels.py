"""What a script keeps itself labels its run: it is said once, and again beside the bits of a run that resumed without it.

It blocks nothing: a state is saved and a run resumes all the same, but under `--recover exact`.
"""

from __future__ import annotations

import json

from samebits.notices import say
from samebits.rank.checks.script.script_state import named_in
from samebits.rank.checks.variables import Named
from samebits.rank.run.position.metrics import keep
from samebits.rank.run.run_state import RunState

MOST_SAID = 3
GRADIENTS = Named(
    "the gradients left at the end of an epoch", "", "call optimizer.zero_grad() at the end of each epoch", "gradients"
)


def label(run: RunState) -> None:
    """Find, at the first step, what no state holds of the script, and say it. Not collective."""
    loop_state = run.loop_state
    loop_state.script = named_in(loop_state)
    loop_state.accumulates = any(one.kind == "gradients" for one in loop_state.script)
    loop_state.script = [one for one in loop_state.script if one.kind != "gradients"]
    _keep(run)
    if loop_state.resumption.has_resumed:
        if names := names_without(run):
            _say(run, f"the run has resumed without {', '.join(names)}, which no state holds and which begins anew.")
    elif loop_state.checkpointing.is_inside:
        say_names(run)


def label_gradients(run: RunState) -> None:
    """Name, at the end of a body of `run.epochs`, gradients that the next step adds to: a state of here lacks them."""
    loop_state = run.loop_state
    if not loop_state.accumulates or loop_state.script is None or GRADIENTS in loop_state.script:
        return
    if any(parameter.grad is not None for model in loop_state.prepared.models for parameter in model.parameters()):
        loop_state.script.append(GRADIENTS)
        _keep(run)
        if loop_state.checkpointing.is_inside:
            _say(run, GRADIENTS.sentence())


def say_names(run: RunState) -> None:
    """Say once what no state holds, with lines, and what to write."""
    loop_state, found = run.loop_state, run.loop_state.script or []
    if loop_state.notices.script:
        return
    loop_state.notices.script = True
    for one in found[:MOST_SAID]:
        _say(run, one.sentence())
    if more := found[MOST_SAID:]:
        _say(run, f"no state holds {', '.join(f'{one.name} ({one.where})' for one in more)} either.")


def names_without(run: RunState) -> list[str]:
    """What a run that has resumed did so without; empty for any other."""
    return run.loop_state.lacks if run.loop_state.resumption.has_resumed else []


def _keep(run: RunState) -> None:
    """Report to the launcher and to later starts of the ranks, on each node."""
    found = run.loop_state.script or []
    document = {"names": [one.name for one in found], "sentences": [one.sentence() for one in found]}
    if found and run.config.folder is not None and run.config.environment.position.local_rank == 0:
        keep(run.config.folder.unsaved, json.dumps(document), run.components.step_timer)


def _say(run: RunState, text: str) -> None:
    if run.components.transport.rank == 0 and run.components.recorder is None and run.components.meter is None:
        say(text)
