"""The words of a shell's script, and where in its text they stand. Pure.

So much of POSIX' grammar (and of bash's) as is needed to put something behind a word and be sure that the
shell reads it there: quotes, escapes, comments, continued lines, expansions. Else it is an error.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_SPACE = " \t\r"
_MOST_CHARS = 65_536
_OPERATORS = ";&|()<>\n"


class ShellError(ValueError):
    """The script is not understood; the text says what of it."""


@dataclass(frozen=True, slots=True)
class Word:
    """start, end: its place in the script. text: without its quotes; None where the shell puts something into
    it (a variable, the output of a command). command: number of the simple command that it is a word of."""

    start: int
    end: int
    text: str | None
    command: int


def words_of(script: str) -> list[Word]:
    """Raises ShellError."""
    if len(script) > _MOST_CHARS:
        raise ShellError(f"it is longer than {_MOST_CHARS} characters")
    try:
        return _words_of(script)
    except RecursionError:
        raise ShellError("it is nested too deeply") from None


def _words_of(script: str) -> list[Word]:
    found: list[Word] = []
    at = command = 0
    while at < len(script):
        here = script[at]
        if here in _SPACE or script.startswith("\\\n", at):
            at += 1 if here in _SPACE else 2
        elif here == "#":
            end = script.find("\n", at)
            at = len(script) if end < 0 else end
        elif script.startswith("<<", at) and not script.startswith("<<<", at):
            raise ShellError("it holds a here-document")
        elif here in _OPERATORS:
            # The name of a redirection's file is a word of the same command, and no harm comes of it here.
            command += here not in "<>"
            at += 3 if script.startswith("<<<", at) else 1
        else:
            end = _word_end(script, at)
            if not (script[at:end].isdigit() and script[end : end + 1] in ("<", ">")):
                found.append(Word(at, end, literal(script[at:end]), command))
            at = end
    return found


def _word_end(script: str, at: int) -> int:
    while at < len(script) and script[at] not in _SPACE + _OPERATORS:
        at = _past(script, at)
    return at


def _past(script: str, at: int) -> int:
    """Behind the character there, or behind what it opens."""
    here = script[at]
    if here == "\\":
        return at + 2
    if here == "'":
        return _closing(script, at + 1, "'")
    if here == '"':
        return _past_double(script, at + 1)
    if here == "`":
        return _closing(script, at + 1, "`")
    if script.startswith("$(", at):
        return _past_bracket(script, at + 2, "()")
    if script.startswith("${", at):
        return _past_bracket(script, at + 2, "{}")
    return at + 1


def _closing(script: str, at: int, mark: str) -> int:
    end = script.find(mark, at)
    if end < 0:
        raise ShellError(f"a {mark} in it is not closed")
    return end + 1


def _past_double(script: str, at: int) -> int:
    while at < len(script):
        if script[at] == '"':
            return at + 1
        # A single quote means nothing within double ones.
        at = at + 1 if script[at] == "'" else _past(script, at)
    raise ShellError('a " in it is not closed')


def _past_bracket(script: str, at: int, pair: str) -> int:
    while at < len(script):
        if script[at] == pair[1]:
            return at + 1
        at = _past_bracket(script, at + 1, pair) if script[at] == pair[0] else _past(script, at)
    raise ShellError(f"a {pair[0]} in it is not closed")


def literal(raw: str) -> str | None:
    """What the shell makes of the word; None where that cannot be said from here."""
    at = 0
    while at < len(raw):
        here = raw[at]
        if here in "$`" or (here == '"' and any(c in "$`" for c in raw[at + 1 : _past(raw, at) - 1])):
            return None
        at = _past(raw, at)
    try:
        parts = shlex.split(raw.replace("\\\n", ""))
    except ValueError:
        return None
    return parts[0] if len(parts) == 1 else None


def script_index(words: Sequence[str]) -> int | None:
    """Which of a container's words is the script that a shell among them is given by -c; None: none is."""
    shell = next((i for i, word in enumerate(words) if word.rpartition("/")[2] in _SHELLS), None)
    if shell is None:
        return None
    by_text = False
    at = shell + 1
    while at < len(words):
        word = words[at]
        if not word.startswith(("-", "+")) or word in ("-", "--"):
            return at if by_text else None
        if not word.startswith("--"):
            by_text = by_text or "c" in word
            # -o takes the name of an option (`bash -euo pipefail -c ...`).
            at += word.endswith("o")
        at += 1
    return None


_SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")
