"""The generated parts of the reference: command line, run folder, exit codes, errors and API, read from the code.

A page in docs/reference/ names a part by `<!-- generated: NAME -->`, where NAME is a key of `PARTS`. Nothing here
imports torch: commands and paths come from the half of the package that works without it, everything else from the
source text.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SOURCE = Path(__file__).parents[1] / "src"
if str(SOURCE) not in sys.path:
    sys.path.insert(0, str(SOURCE))  # the code beside these pages, whatever is installed

import click  # noqa: E402

import samebits  # noqa: E402
from samebits.cli.main import COMMANDS, commands  # noqa: E402
from samebits.protocol.events import Kind  # noqa: E402
from samebits.protocol.run_folder import RunFolder  # noqa: E402

EXIT_CODE = "Exit code:"
"""How the paragraph on exit codes in a command's help begins."""


@dataclass(frozen=True)
class ErrorClass:
    """An exception class as its source has it."""

    name: str
    module: str
    bases: tuple[str, ...]
    text: str

    @property
    def shown(self) -> str:
        """With the package's name where a script can import it from there."""
        return f"samebits.{self.name}" if self.name in samebits.__all__ else self.name

    @property
    def origin(self) -> str:
        """The module of a class that is not public."""
        return "" if self.name in samebits.__all__ else f" (`{self.module}`)"


def command_line() -> str:
    """Each command with its usage, its options and the notes below them."""
    lines = []
    for name in _names():
        command, context = _command(name)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [
            f"{'#' * (2 + name.count(' '))} samebits {name}",
            "",
            f"```console\n$ samebits {name} {usage}\n```",
            "",
        ]
        lines += [" ".join((command.help or "").split()), ""]
        rows = [f"| `{words}` | {_cell(text)} |" for words, text in _records(command, context)]
        lines += ["| option | what it does |", "|---|---|", *rows] if rows else []
        lines += ["", *_notes(command), ""]
        accepted = [f"`{option.opts[-1]}`" for option in _options(command) if option.hidden]
        if accepted:
            lines += [
                "Accepted as well, from torchrun, without a meaning on one node: " + ", ".join(accepted) + ".",
                "",
            ]
    return "\n".join(lines)


def exit_codes() -> str:
    """What each command's help says about its exit codes."""
    rows = [f"| `samebits {name}` | {_cell(_exit_code(_command(name)[0]))} |" for name in _names()]
    return "\n".join(["| command | exit codes |", "|---|---|", *rows])


def run_folder() -> str:
    """Every file of a run folder with what is in it, as `RunFolder` documents them."""
    folder = RunFolder(Path("NAME"))
    rows = []
    for name, member in vars(RunFolder).items():
        if name.startswith("_") or name == "path":
            continue
        numbers = [0] * (len(inspect.signature(member).parameters) - 1) if inspect.isfunction(member) else None
        place = getattr(folder, name) if numbers is None else getattr(folder, name)(*numbers)
        if not isinstance(place, Path):
            continue
        function = member if numbers is not None else member.fget
        rows.append(
            f"| `{PurePosixPath(place).relative_to('NAME')}` | {_cell(_text(inspect.getdoc(function) or ''))} |"
        )
    return "\n".join(["| file (of rank 0) | what is in it |", "|---|---|", *rows])


def events() -> str:
    """Every kind of event with its fields, as `Kind` documents them."""
    tree = ast.parse(inspect.getsource(Kind))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    rows = []
    for member, text in itertools.pairwise(body):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            rows.append(f"| `{ast.literal_eval(member.value)}` | {_cell(_text(ast.literal_eval(text.value)))} |")
    return "\n".join(["| event | when, and its fields |", "|---|---|", *rows])


def errors() -> str:
    """The tree of exceptions, parents first."""
    found = {one.name: one for one in _error_classes()}

    def below(name: str) -> Iterator[ErrorClass]:
        yield found[name]
        for one in found.values():
            if one.bases[:1] == (name,):
                yield from below(one.name)

    rows = [
        f"| `{one.shown}` | {', '.join(f'`{base}`' for base in one.bases)} | {_cell(one.text)}{one.origin} |"
        for one in below("SamebitsError")
    ]
    return "\n".join(["| class | is a | when |", "|---|---|---|", *rows])


def api() -> str:
    """Directives for mkdocstrings: `init`, the other functions, classes, exceptions."""
    exceptions = {one.name for one in _error_classes()}
    names = [name for name in samebits.__all__ if not name.startswith("_")]
    names.sort(key=lambda name: (name in exceptions, name != "init", name[0].isupper(), name))
    return "\n\n".join(f"::: samebits.{name}" for name in names)


PARTS = {
    "api": api,
    "command line": command_line,
    "errors": errors,
    "events": events,
    "exit codes": exit_codes,
    "run folder": run_folder,
}
"""What may follow `generated:` in a page."""


def _names() -> Iterator[str]:
    """Every command, each group before its own: `checkpoint`, `checkpoint ls`."""
    for name in COMMANDS:
        yield name
        command, context = _command(name)
        if isinstance(command, click.Group):
            yield from (f"{name} {one}" for one in command.list_commands(context))


def _command(name: str) -> tuple[click.Command, click.Context]:
    command: click.Command | None = commands
    context = click.Context(commands, info_name="samebits")
    for word in name.split():
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
        if command is None:
            raise LookupError(f"samebits has no command {name!r}")
        context = click.Context(command, context, info_name=word)
    assert command is not None
    return command, context


def _options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def _records(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """The words of each option that is shown, and its text with the default."""
    return [record for option in _options(command) if (record := option.get_help_record(context)) is not None]


def _paragraphs(command: click.Command) -> list[str]:
    """The epilog's paragraphs, without click's marks."""
    return [part.replace("\b\n", "").strip() for part in (command.epilog or "").split("\n\n")]


def _notes(command: click.Command) -> list[str]:
    """The epilog: examples as a block, the rest as text."""
    notes = []
    for part in _paragraphs(command):
        if part.startswith("Examples:"):
            examples = "\n".join(f"$ {line.strip()}" for line in part.splitlines()[1:])
            notes += [f"```console\n{examples}\n```", ""]
        else:
            notes += [_text(part), ""]
    return notes


def _exit_code(command: click.Command) -> str:
    return _text(next(part for part in _paragraphs(command) if part.startswith(EXIT_CODE)).removeprefix(EXIT_CODE))


def _error_classes() -> list[ErrorClass]:
    """SamebitsError and all classes below it, wherever in the package they are."""
    all_classes = [
        ErrorClass(
            node.name,
            ".".join(path.relative_to(SOURCE).with_suffix("").parts),
            tuple(ast.unparse(base) for base in node.bases),
            _text((ast.get_docstring(node) or "").partition("\n\n")[0]),
        )
        for path in sorted((SOURCE / "samebits").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    found = [one for one in all_classes if one.name == "SamebitsError"]
    for parent in found:  # which grows
        found += [one for one in all_classes if parent.name in one.bases and one not in found]
    return found


def _text(lines: str) -> str:
    """One paragraph as one line. Anything that begins like a tag in angle brackets is shown as it is."""
    return " ".join(lines.split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
