"""Which words of a command line are the command's own and which the script's, and whether that script can be run."""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path

import click

from samebits.errors import UsageError
from samebits.machine.regular_file import read_regular
from samebits.machine.visible import visible


def own_first(
    words: Sequence[str], valued: Collection[str], flags: Collection[str], counted: Collection[str] = ()
) -> list[str]:
    """Put the words in this order: the command's options, the script, the script's words.

    The command's options come before the script. Until the next minor version they still count right after it, as long as no
    other word has come; `--` ends that, and is dropped.

    Args:
        words: as typed.
        valued: options that take the next word, unless they carry `=value`.
        flags: options without a value.
        counted: options that take the next word if it is a number.

    Invariant: without `--`, the result has the same words, and the script's keep their order.
    """
    own: list[str] = []
    script: list[str] = []
    rest = list(words)
    while rest:
        word = rest[0]
        if word == "--":
            rest.pop(0)
            break
        if word.partition("=")[0] in valued and word not in counted:
            taken = 1 if "=" in word else 2
        elif word in counted:
            taken = 2 if _is_number(rest[1:2]) else 1
        elif word in flags or (word.startswith("-") and not script):
            taken = 1
        elif script:
            break
        else:
            script.append(rest.pop(0))
            continue
        own += rest[:taken]
        del rest[:taken]
    return [*own, *script, *rest]


def _is_number(words: Sequence[str]) -> bool:
    return bool(words) and re.fullmatch(r"-?\d+", words[0]) is not None


def with_values(words: Sequence[str], valued: Collection[str], counted: Collection[str]) -> list[str]:
    """The same with `--where 3` as `--where=3` and `--where` as `--where=`: click would take the script for the value."""
    found: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in counted:
            found.append(f"{word}={rest.pop(0) if _is_number(rest[:1]) else ''}")
        else:
            found += [word, *([rest.pop(0)] if word in valued and rest else [])]
    return [*found, *rest]


CLOSE = 0.8
"""A word this close to an option is probably meant to be that option: --stesp, --rank."""


RANKS_OF_RUN = ("-n", "--nproc-per-node", "--nproc_per_node")
"""How `samebits run` and torchrun call the number of ranks; `verify` and `bench` take several: --ranks."""


def strays(words: Sequence[str], options: Collection[str], source: str | None) -> list[str]:
    """What to say about the script's words that look like the command's own: one sentence for each.

    Args:
        words: those that go to the script.
        options: the command's, in all spellings.
        source: the script's text; an option that it names is its own. None when unknown.
    """
    text = source or ""
    said: dict[str, str] = {}
    for name in (word.partition("=")[0] for word in words):
        if name in options and not _declares(text, name):
            said[name] = (
                f"{name} comes after the script and its arguments, so it goes to the script; put it before them to mean it for samebits"
            )
        elif name in RANKS_OF_RUN and "--ranks" in options and not _declares(text, name):
            said[name] = f"{name} goes to the script; did you mean --ranks?"
        elif name.startswith("--") and name not in options and not _has_word(text, name[2:]):
            for meant in get_close_matches(name, [option for option in options if option.startswith("--")], 1, CLOSE):
                said[name] = f"{name} goes to the script; did you mean {meant}?"
    return list(said.values())


def _declares(source: str, option: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(option)}\b", source) is not None


def _has_word(source: str, name: str) -> bool:
    """Whether the script has a variable or an option of this name; some libraries derive one from the other."""
    spelt = "[-_]".join(map(re.escape, re.split("[-_]", name)))
    return re.search(rf"\b{spelt}\b", source) is not None


class RemembersWords(click.Command):
    """A command that knows how its options were written: `ctx.meta[WORDS]`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        rest = super().parse_args(ctx, args)
        script = len(ctx.params.get("args", ())) + 1
        ctx.meta[WORDS] = tuple(words[: len(words) - script])
        return rest


WORDS = "samebits.words"


class NumberOrNone(click.Option):
    """An option of an `OptionsBeforeScript` whose value is a number or left out; then it is the empty text."""


class OptionsBeforeScript(click.Command):
    """A command that takes its options before SCRIPT, and for now, with a line about it, right after it too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        valued = {name for option in options if not option.is_flag for name in option.opts}
        flags = {name for option in options if option.is_flag for name in option.opts}
        counted = {name for option in options if isinstance(option, NumberOrNone) for name in option.opts}
        ordered = own_first(args, valued, flags, counted)
        if ordered != [word for number, word in enumerate(args) if number != _end_of_options(args)]:
            click.echo(f"note: {BEHIND.format(command=ctx.command_path)}", err=True)
        rest = super().parse_args(ctx, with_values(ordered, valued, counted))
        if "--" not in args and not ctx.resilient_parsing:
            note_strays(self, ctx, ctx.params["args"])
        return rest


BEHIND = (
    "options of `{command}` belong before the script. Right behind it they count until the next minor version; then every word "
    "behind the script is the script's."
)


def _end_of_options(words: Sequence[str]) -> int:
    """Where the first `--` is; -1 where there is none."""
    return words.index("--") if "--" in words else -1


def note_strays(command: click.Command, ctx: click.Context, words: Sequence[str]) -> None:
    """Say on standard error which of the script's words look like options of `command`."""
    from samebits.launcher.script_source import source_of

    names = [name for option in command.get_params(ctx) if isinstance(option, click.Option) for name in option.opts]
    source = source_of(ctx.params["script"], bool(ctx.params["module"])) if words else None
    for sentence in strays(words, names, source):
        click.echo(f"note: {sentence}", err=True)


MOST_BYTES = 16 << 20
"""No script is larger; where one is, the ranks report it."""


def check_python(path: Path) -> None:
    """Raise `UsageError` for a file that Python cannot compile: then no rank has to start to say so.

    Raises:
        OSError: when it cannot be read.
    """
    name = visible(path)
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{name} is a notebook, not a script.",
            "Call samebits.spawn in it, or convert it: jupyter nbconvert --to script.",
        )
    source = read_regular(path, most_bytes=MOST_BYTES)
    if b"\0" in source:
        raise UsageError(f"{name} is not Python source: it has zero bytes.", "Give the script as text.")
    try:
        with warnings.catch_warnings():
            # Python warns when it runs the script; here they would come twice.
            warnings.simplefilter("ignore")
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UsageError(f"{name} is not Python: {_what(error)}.", "Check that line; no rank was started.") from None
    except (ValueError, RecursionError, MemoryError):
        # It may be the limits of this process; the ranks may have more room.
        return


def _what(error: SyntaxError) -> str:
    """`line 2: invalid syntax: def f(:`."""
    text = (error.text or "").strip()
    shown = f": {text if len(text) <= 60 else f'{text[:57]}...'}" if text else ""
    return visible(f"{f'line {error.lineno}: ' if error.lineno else ''}{error.msg}{shown}")


def check_module(module: str) -> None:
    """Raise `UsageError` where there is no such module, it cannot be run, or it is not Python."""
    if module.endswith(".py") and Path(module).is_file():
        raise UsageError(f"{module} is a script, but -m takes a module.", "Give one of them: leave out -m.")
    if not is_module_here(module):
        raise UsageError(f"There is no module {module} here.", "Check the name, or the working directory.")
    if _is_missing(module):
        raise UsageError(
            f"There is no module {module} that can be run.", "Check the name; a package needs __main__.py."
        )
    from samebits.launcher.script_source import module_file

    file = module_file(module)
    if file is not None:
        check_python(file)


def is_module_here(name: str) -> bool:
    """Whether its top level can be found; its packages are not imported here."""
    top, *rest = name.split(".")
    if not all(word.isidentifier() for word in (top, *rest)):
        return False
    here = Path(top)
    return here.is_dir() or here.with_suffix(".py").is_file() or importlib.util.find_spec(top) is not None


def _is_missing(module: str) -> bool:
    """Whether it is surely not there, or a package without `__main__`; parents that look elsewhere may have anything."""
    folders, words = [str(Path.cwd()), *sys.path], [*module.split("."), "__main__"]
    for number, word in enumerate(words):
        spec = PathFinder.find_spec(word, folders)
        if spec is None:
            # Only submodules are certain: other finders may know a top-level name.
            return number > 0
        if spec.submodule_search_locations is None:
            return number < len(words) - 2
        if spec.origin is not None and b"__path__" in read_regular(spec.origin, most_bytes=MOST_BYTES):
            return False
        folders = list(spec.submodule_search_locations)
    return False
