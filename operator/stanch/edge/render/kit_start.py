"""How a container starts vLLM, and two changes of that: the middleware, and the KV connector. Pure.

`vllm serve` wants its model right behind `serve` where there is a --config file, too (_pull_args_from_config
in vllm/utils/argparse_utils.py, 0.29.0): so in a script the flag goes behind both, and needs no look at where
the command ends. Else it is appended. --middleware may come several times.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from stanch.edge.render.kit_shell import ShellError, Word, script_index, words_of
from stanch.edge.units_args import arguments_of
from stanch_connector.install.names import MIDDLEWARE

Object = dict[str, Any]
Key = Literal["command", "args"]
FLAG = "--middleware"
_INSERTED = f" {FLAG} {MIDDLEWARE}"
_SERVERS = ("vllm.entrypoints.openai.api_server",)
_CLI = "vllm.entrypoints.cli.main"
_RAY = re.compile(r"(?:^|[\s=])ray(?:\s|$)|ray_cluster")
_MOST_CHARS = 65_536
# Flags that only vLLM's server has, as far as is known: by them an image's own entrypoint is told.
_ITS_OWN = (
    "max-model-len",
    "gpu-memory-utilization",
    "max-num-seqs",
    "max-num-batched-tokens",
    "enforce-eager",
)


@dataclass(frozen=True, slots=True)
class Start:
    """key: the list that holds it. script: index of the shell's script in that list; None: the list is given
    to the program as it stands, and flags are appended to it."""

    key: Key
    script: int | None = None


def looks_like(container: Object) -> bool:
    """Whether an image's own entrypoint, with these arguments, is vLLM's server."""
    args = words_in(container, "args")
    image = str(container.get("image") or "").rpartition("/")[2]
    names = {arg.partition("=")[0].lstrip("-").replace("_", "-") for arg in args if arg.startswith("--")}
    return (
        bool(args)
        and not words_in(container, "command")
        and (image.startswith("vllm-openai") or any(name in names for name in _ITS_OWN))
    )


def mentions(container: Object) -> bool:
    """Whether the start of vLLM's server is written in it anywhere."""
    words = (*words_in(container, "command"), *words_in(container, "args"))
    return any("vllm serve" in word or "vllm.entrypoints" in word for word in words)


def start_of(container: Object) -> Start | str:
    """How it starts vLLM's server, or why the flag cannot be put there: a sentence that says what to do."""
    command, args = words_in(container, "command"), words_in(container, "args")
    words = [*command, *args]
    place = script_index(words)
    if place is None and not command and len(args) == 1 and any(c.isspace() for c in args[0]):
        # The image's entrypoint is a shell with -c, or this could not work.
        place = 0
    if place is not None:
        try:
            inner = words_of(words[place])
        except ShellError as error:
            return f"its script is not understood ({error}): {_BY_HAND}"
        found = _servers(inner)
        if not found and MIDDLEWARE not in words[place]:
            return f"its script does not say `vllm serve` outside of quotes and variables: {_BY_HAND}"
        inside = place - len(command)
        if inside < 0 and args and _hands_on(words[place], inner, found):
            return Start("args")
        return Start("command", place) if inside < 0 else Start("args", inside)
    if command and not _servers([Word(0, 0, word, 0) for word in words]):
        return (
            f"its command is {shlex.join(command)[:80]}, not `vllm serve`, and may not know {FLAG}: {_OTHER}"
        )
    if not words:
        return (
            "it has neither command nor args, and args would replace what its image has in their place: "
            "write the engine's arguments into args"
        )
    if "--" in words and _behind_dashes(words):
        return f"its arguments hold a `--`, behind which {FLAG} would be no flag: {_BY_HAND}"
    return Start("args" if args else "command")


_BY_HAND = f"add `{FLAG} {MIDDLEWARE}` to its `vllm serve` by hand"
_OTHER = f"start it by `vllm serve`, or add `{FLAG} {MIDDLEWARE}` by hand if it takes that"


def serves(container: Object, start: Start) -> bool:
    """Whether it has an HTTP server: all but the worker of a group, which is --headless. A script that
    starts one way or the other (by its place in the group) may have one."""
    if not arguments_of(container).headless:
        return True
    return start.script is not None and len(_servers(words_of(container[start.key][start.script]))) > 1


def over_ray(container: Object) -> bool:
    """Whether its ranks may be processes that Ray starts, in pods where the kit is not."""
    words = (*words_in(container, "command"), *words_in(container, "args"))
    return any(_RAY.search(word[:_MOST_CHARS]) for word in words)


def has_middleware(container: Object) -> bool:
    return any(MIDDLEWARE in word for word in (*words_in(container, "command"), *words_in(container, "args")))


def add_middleware(container: Object, start: Start) -> None:
    """Where it has none."""
    words = container[start.key]
    if start.script is None:
        container[start.key] = [*words, FLAG, MIDDLEWARE]
        return
    script = words[start.script]
    cuts = [0, *_servers(words_of(script)), len(script)]
    script = _INSERTED.join(script[a:b] for a, b in pairwise(cuts))
    container[start.key] = [*words[: start.script], script, *words[start.script + 1 :]]


def take_middleware(container: Object) -> None:
    """What `add_middleware` put in."""
    for key in ("args", "command"):
        words = words_in(container, key)
        for at in reversed(range(len(words) - 1)):
            if words[at : at + 2] == [FLAG, MIDDLEWARE]:
                # Of the list itself: what is no text there (a port without quotes) stays as it is.
                container[key] = [*container[key][:at], *container[key][at + 2 :]]
                return
        if any(_INSERTED in word for word in words):
            every = container[key]
            container[key] = [one.replace(_INSERTED, "") if isinstance(one, str) else one for one in every]
            return


def _servers(words: Sequence[Word]) -> list[int]:
    """Ends of the words behind which a flag of vLLM's server may stand: its model, or `serve`."""
    found = []
    for at, word in enumerate(words):
        following = [one for one in words[at + 1 : at + 4] if one.command == word.command]
        texts = [one.text for one in following]
        if word.text == "-m" and texts[:1] and texts[0] in _SERVERS:
            found.append(following[0].end)
            continue
        cli = word.text == "-m" and texts[:1] == [_CLI]
        program = word.text is not None and word.text.rpartition("/")[2] == "vllm"
        skipped = 1 if cli else 0
        if (cli or program) and texts[skipped : skipped + 1] == ["serve"]:
            rest = following[skipped + 1 :]
            behind = rest[0] if rest and not (rest[0].text or "").startswith("-") else following[skipped]
            found.append(behind.end)
    return found


def _hands_on(script: str, words: Sequence[Word], servers: Sequence[int]) -> bool:
    """Whether every server in the script is given the script's own arguments."""
    commands = {word.command for word in words if word.end in servers}
    given = {word.command for word in words if script[word.start : word.end] in ('"$@"', '"${@}"')}
    return bool(commands) and commands <= given


def _behind_dashes(words: Sequence[str]) -> bool:
    """Whether a `--` stands behind the server's name; one before it is a wrapper's (`tini --`)."""
    last = len(words) - 1 - list(reversed(words)).index("--")
    return not _servers([Word(0, 0, word, 0) for word in words[last + 1 :]])


def words_in(container: Object, key: str) -> list[str]:
    """Those of its command or args."""
    found = container.get(key)
    return [word if isinstance(word, str) else "" for word in found] if isinstance(found, list) else []
