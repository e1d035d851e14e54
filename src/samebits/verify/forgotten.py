"""What a script forgot to put into its states: a pure function of what a stopped run resumed with. Names, and advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from samebits.verify.evidence import ItemAtStep, Kind, Recorded, readable

MOST_NAMED = 4
COLLECTIONS = ("dict", "list", "OrderedDict")
NOT_BROUGHT_BACK = (
    "its load_state_dict did not bring back what its state_dict had returned. Let both be about the same values."
)
GRADIENTS = (
    "gradients that were left at the end of an epoch were added to in the next one; a state between epochs does not hold "
    "them. Call optimizer.zero_grad() at the end of an epoch."
)
HIDDEN = (
    "the script keeps something that no state holds, and that is neither a plain variable nor an object with a "
    "state_dict: an attribute deep inside an object, or state of a data set or of a library. Keep values in run.state, and "
    "give the object's class state_dict and load_state_dict for run.track."
)


@dataclass(frozen=True)
class Variable:
    """A plain value that the script had before the stop, and another one when it resumed."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Forgotten:
    """What the script held when it resumed, and not as before."""

    objects: tuple[tuple[str, str], ...] = ()
    """Name and class of objects with a state_dict, and of dictionaries and lists like a model's weights."""
    variables: tuple[Variable, ...] = ()
    named: tuple[str, ...] = ()
    """Sentences about what no state holds, found in the script's source: an optimizer that was not prepared, say."""

    def advice(self) -> str:
        """What to do, in sentences; empty when nothing was forgotten."""
        return " ".join([*self._about_objects(), *self._about_variables()])

    def _about_objects(self) -> Iterator[str]:
        tracked = [(name, kind) for name, kind in self.objects if kind not in COLLECTIONS]
        if tracked:
            names = _listed([f"{name} ({kind})" for name, kind in tracked])
            word = _identifier(tracked[0][0])
            yield (
                f"states do not hold {names}. Add run.track({word}={tracked[0][0]}) before the first epoch; a scheduler of "
                f"torch may go to run.prepare."
            )
        if others := [name for name, kind in self.objects if kind in COLLECTIONS]:
            yield f"states do not hold {_listed(others)}. Keep it in run.state: run.state.{_identifier(others[0])}."

    def _about_variables(self) -> Iterator[str]:
        if self.variables:
            record = _listed([f"{one.name} ({one.before}, then {one.after})" for one in self.variables])
            word = "variable" if len(self.variables) == 1 else "variables"
            yield (
                f"states do not hold the {word} {record}. Keep what matters in run.state: "
                f"run.state.{_identifier(self.variables[0].name)}."
            )


def forgotten(undisturbed: Recorded, stopped: Recorded, resumed: Recorded, named: Sequence[str] = ()) -> Forgotten:
    """Compare what the script held before the step after the stop.

    Args:
        undisturbed: what rank 0 of the run without a stop recorded.
        stopped: of the run until its stop.
        resumed: of the run that resumed.
        named: what its ranks had reported of the script.
    """
    own, own_resumed = _of(Kind.OWN, undisturbed), _of(Kind.OWN, resumed)
    changed = [item for item, value in own.items() if own_resumed.get(item, value) != value]
    objects = {name: own[name] for item in changed if (name := _object_of(item, own))}
    now, then, later = (_of(Kind.VARIABLE, one) for one in (undisturbed, stopped, resumed))
    # What the stopped run had otherwise, on its way to the same step, is a clock or the like.
    variables = [
        Variable(name, *_texts(value, later[name]))
        for name, value in now.items()
        if later.get(name, value) != value == then.get(name)
    ]
    return Forgotten(tuple(objects.items()), tuple(variables), tuple(named))


def cause(found: Forgotten, place: ItemAtStep) -> str:
    """The usual cause of the first difference, at `place`."""
    if advice := found.advice():
        return advice
    named = " ".join(found.named[:MOST_NAMED])
    return {Kind.RESUMED: NOT_BROUGHT_BACK, Kind.GRADIENT: GRADIENTS}.get(place.kind, named or HIDDEN)


def _of(kind: Kind, recorded: Recorded) -> dict[str, str]:
    return {
        place.item.removeprefix(f"{kind} "): value
        for place, value in recorded.items()
        if place.item.startswith(f"{kind} ")
    }


def _object_of(item: str, own: Mapping[str, str]) -> str:
    """The object that an item belongs to: it was recorded by its own name too, with its class."""
    # The longest: `trainer.average` is in `trainer`, which may be such an object itself.
    names = [name for name in own if item.startswith((f"{name}.", f"{name}["))]
    return max(names, key=len, default="")


def _texts(before: str, after: str) -> tuple[str, str]:
    """Both values for a person; a digest only where nothing else distinguishes them."""
    words = before.partition(", ")[0], after.partition(", ")[0]
    return (before, after) if words[0] == words[1] else (readable(words[0])[:40], readable(words[1])[:40])


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _identifier(name: str) -> str:
    """The last word of a path such as `trainer.average`."""
    last = name.rpartition(".")[2]
    return last if last.isidentifier() else name.partition("[")[0].rpartition(".")[2]
