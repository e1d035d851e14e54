"""Which words of a command line are the command's own, and which are the script's."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def own_first(words: Sequence[str], valued: Collection[str], flags: Collection[str]) -> list[str]:
    """The words in the order: the command's options, the script, the script's words.

    The command's options stand before the script or right behind it. The first word behind the script that is none of
    them begins the script's own, whatever follows; so does `--`, which is dropped.

    Args:
        words: as they were typed.
        valued: options that take the next word, unless they carry `=value`.
        flags: options without a value.

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
        if word.partition("=")[0] in valued:
            taken = 1 if "=" in word else 2
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
