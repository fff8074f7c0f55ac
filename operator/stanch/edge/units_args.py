"""What the arguments of an engine's container say of it. Pure.

Read are `vllm serve`'s own flags (vllm/engine/arg_utils.py, 0.29.0: the long names, the short forms of the
data-parallel ones, and underscores for dashes), also within the script of a shell, with `$(NAME)`, `${NAME}`
and `$NAME` filled in from the container's literal environment. A configuration file (--config) is not read.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

from stanch.core.policy import DAY
from stanch.core.sample import Role
from stanch.edge.units_raw import Object, rows, text, texts

# A script longer than this is not looked through.
_MOST_CHARS = 65_536
_DEEPEST = 8
_SERVE = "vllm serve "
_VARIABLE = re.compile(r"\$\((\w+)\)|\$\{(\w+)\}|\$(\w+)")
_SHORT = {
    "-n": "--nnodes",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
}
_KV = "--kv-transfer-config"
# The default of decoder_kv_blocks_ttl (vLLM 0.22 and later) and of what stood for it before: docs/vllm.md.
PIN_SECONDS = 480.0


@dataclass(frozen=True, slots=True)
class Arguments:
    """vllm: whether they start a vLLM server (an image's own entrypoint may; then its flags
    tell). headless: one without an HTTP server (--headless).
    engine_id: one that is fixed in kv_transfer_config; None: vLLM makes a random one at each start.
    nodes: --nnodes. ranks, local_ranks: data-parallel ranks in all and in this container; None: not said, or
    not as a number. address: of the data-parallel group's head. grouped: they speak of a data-parallel group,
    in whatever way. lease_seconds, pin_seconds: as kv_connector_extra_config has them; pin_seconds only where
    it is, or may be, bidirectional. port: --port; None: not said, or no port. role: as kv_role tells it;
    kv_both does not.
    """

    vllm: bool = False
    headless: bool = False
    engine_id: str | None = None
    nodes: int | None = None
    ranks: int | None = None
    local_ranks: int | None = None
    address: str | None = None
    grouped: bool = False
    lease_seconds: float | None = None
    pin_seconds: float | None = None
    port: int | None = None
    role: Role | None = None

    def spans_pods(self, servers: int) -> bool:
        """Whether other pods belong to the same engine or data-parallel group. servers: how many ranks have
        a server of their own here."""
        if self.headless or (self.nodes or 1) > 1:
            return True
        if self.ranks is None:
            # A size that is not a plain number (a shell's arithmetic) says nothing; that there is one, does.
            return self.grouped
        here = self.ranks if self.local_ranks is None else self.local_ranks
        return self.ranks > max(here, servers)


def arguments_of(container: Object) -> Arguments:
    known = {text(one, "name"): text(one, "value") for one in rows(container, "env") if "value" in one}
    words = (*texts(container, "command"), *texts(container, "args"))
    variables = tuple(sorted(known.items()))
    # What comes to the webhook may be anything: what is kept must not fill the memory.
    large = sum(map(len, words)) + sum(len(name) + len(value) for name, value in variables) > _MOST_CHARS
    return _read.__wrapped__(words, variables) if large else _read(words, variables)


@lru_cache(maxsize=1024)
def _read(raw: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> Arguments:
    """Kept, because the pods of one workload have the same, turn after turn."""
    words = list(_words(raw, dict(variables)))
    options = _options(words)
    settings = _transfer(options)
    bidirectional = any(settings.get("bidirectional_kv_xfer", ()))
    lone = "--data-parallel-rank" in options or "--data-parallel-external-lb" in options
    local = _whole(options.get("--data-parallel-size-local"))
    return Arguments(
        vllm=_is_vllm(words) or any(name.partition(".")[0] == _KV for name in options),
        headless="--headless" in options,
        engine_id=_engine_id(settings),
        nodes=_whole(options.get("--nnodes")),
        ranks=_whole(options.get("--data-parallel-size")),
        local_ranks=1 if local is None and lone else local,
        address=options.get("--data-parallel-address") or options.get("--master-addr"),
        grouped=lone or any(f"--data-parallel-{word}" in options for word in _GROUPED),
        lease_seconds=_seconds(settings.get("kv_lease_duration", ())),
        pin_seconds=(_seconds(settings.get("decoder_kv_blocks_ttl", ())) or PIN_SECONDS)
        if bidirectional
        else None,
        port=_port(options.get("--port")),
        role=_role(settings.get("kv_role", ())),
    )


def _port(value: str | None) -> int | None:
    number = _whole(value)
    return number if number is not None and 1 <= number <= 65535 else None


def _role(values: Sequence[object]) -> Role | None:
    """None where several connectors say different things."""
    told = {_ROLES.get(str(one)) for one in values}
    return told.pop() if len(told) == 1 else None


_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


_GROUPED = ("start-rank", "address", "hybrid-lb")


def _words(raws: Sequence[str], known: Mapping[str, str]) -> Iterator[str]:
    def filled(match: re.Match[str]) -> str:
        return known.get(match[1] or match[2] or match[3], match[0])

    for raw in raws:
        word = _VARIABLE.sub(filled, raw[:_MOST_CHARS])
        # An option with its value, or JSON, is one word whatever it holds; a script is many.
        if not any(c.isspace() for c in word) or word.lstrip()[:1] in ("-", "{", "["):
            yield word
        else:
            for inner in _split(word):
                # A script may hand the whole line to eval, as KServe's templates do.
                yield from _split(inner) if _SERVE in inner else (inner,)


def _split(script: str) -> list[str]:
    try:
        return shlex.split(script.replace("\\\n", " "))
    except ValueError:
        return script.split()


def _is_vllm(words: Sequence[str]) -> bool:
    return any(
        word.startswith("vllm.entrypoints") or (word.rpartition("/")[2] == "vllm" and "serve" in words)
        for word in words
    )


def _options(words: Sequence[str]) -> dict[str, str]:
    """Values by long name, "" for a flag without one; the last of several, but for parts of one object
    (--kv-transfer-config.key), which have names of their own."""
    found: dict[str, str] = {}
    for word, following in zip(words, (*words[1:], "")[: len(words)], strict=True):
        name, equals, value = word.partition("=")
        name = _SHORT.get(name, name)
        if name.startswith("--"):
            head, dot, tail = name.partition(".")
            key = f"{head.replace('_', '-')}{dot}{tail}"
            found[key] = value if equals else "" if following.startswith("--") else following
    return found


def _transfer(options: Mapping[str, str]) -> dict[str, list[object]]:
    """The values of each key anywhere in kv_transfer_config, the connectors within a MultiConnector too."""
    found: dict[str, list[object]] = {}
    if (whole := options.get(_KV)) is not None:
        _collect(_json(whole), found, 0)
        if not found:
            # Not JSON as it stands (a shell's variable within): a key that is named there may be set.
            for key in ("engine_id", "bidirectional_kv_xfer"):
                if key in whole:
                    found[key] = ["?"]
    for name, value in options.items():
        if name.startswith(f"{_KV}."):
            parsed = _json(value)
            _collect({name.rpartition(".")[2]: value if parsed is None else parsed}, found, 0)
    return found


def _collect(value: object, found: dict[str, list[object]], depth: int) -> None:
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            found.setdefault(key, []).append(inner)
            _collect(inner, found, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _collect(inner, found, depth + 1)


def _json(value: str) -> object:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _engine_id(settings: Mapping[str, list[object]]) -> str | None:
    return next((str(one)[:64] for one in settings.get("engine_id", ()) if one not in (None, "")), None)


def _whole(value: str | None) -> int | None:
    """A number of ranks or nodes."""
    return (
        int(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 7 else None
    )


def _seconds(values: Sequence[object]) -> float | None:
    """The longest of these times."""
    numbers = [
        float(one)
        for one in values
        if isinstance(one, (int, float)) and not isinstance(one, bool) and isfinite(one) and 1 <= one <= DAY
    ]
    return max(numbers, default=None)
