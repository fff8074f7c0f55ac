"""Changes of one YAML document in its own text: what is not changed stays byte for byte, comments too. Pure.

What is written anew is block style within block style, and JSON (which YAML takes) within flow style. Where a
place is too odd for that (an alias, a merged key, a compact nesting), SpliceError: the caller then writes the
document anew.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import yaml

from stanch.edge.json_patch import aligned, same
from stanch.edge.yaml_scalars import by_piece, inline
from stanch.edge.yaml_values import Loader, block

_IN_FLOW = -1


class SpliceError(ValueError):
    """The text is not such that the change can be made in it."""


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


def spliced(text: str, old: Any, new: Any) -> str:
    """The text of a document with value `old`, changed so that its value is `new`. Raises SpliceError."""
    root = yaml.compose(text, Loader=Loader)
    if root is None:
        raise SpliceError("the document is empty")
    work = _Work(text, root)
    work.change(root, old, new, 0)
    # From the end; of several in one place the last first: what is deeper comes first there.
    order = sorted(enumerate(work.edits), key=lambda one: (one[1].start, one[1].end, one[0]), reverse=True)
    for _, edit in order:
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


class _Work:
    def __init__(self, text: str, root: yaml.Node) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.edits: list[_Edit] = []
        self._times: Counter[int] = Counter()
        self._count(root)

    def _count(self, node: yaml.Node) -> None:
        self._times[id(node)] += 1
        if self._times[id(node)] > 1:
            return
        if isinstance(node, yaml.MappingNode):
            for pair in node.value:
                for one in pair:
                    self._count(one)
        elif isinstance(node, yaml.SequenceNode):
            for one in node.value:
                self._count(one)

    def change(self, node: yaml.Node, old: Any, new: Any, indent: int) -> None:
        """indent: column of the key that the node is the value of; _IN_FLOW within flow style."""
        if same(old, new):
            return
        if self._times[id(node)] > 1:
            raise SpliceError("it stands for several places (an alias)")
        if isinstance(node, yaml.MappingNode) and isinstance(new, dict) and not node.flow_style:
            self._mapping(node, old, new)
        elif isinstance(node, yaml.SequenceNode) and isinstance(new, list) and not node.flow_style:
            self._sequence(node, old, new)
        elif isinstance(new, (dict, list)) and new and not old and indent >= 0:
            # From nothing, as `volumes: []`: block style below the key, behind what else stands in its line.
            self._edit(node.start_mark.index, node.end_mark.index, "")
            at = self._next_line(node.end_mark.index)
            self._insert(at, new, indent + (2 if isinstance(new, dict) else 0))
        elif isinstance(new, str) and isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            self._literal(node, new)
        elif isinstance(node, yaml.MappingNode) and isinstance(new, dict):
            self._flow_mapping(node, old, new)
        elif isinstance(node, yaml.SequenceNode) and isinstance(new, list):
            self._flow_sequence(node, old, new)
        elif isinstance(node, yaml.CollectionNode) and not node.flow_style:
            raise SpliceError("another kind of value in place of a block")
        else:
            start, end = node.start_mark.index, node.end_mark.index
            written = by_piece(self.text[start:end], old, new)
            if written is None:
                written = inline(new, node.style if isinstance(node, yaml.ScalarNode) else None)
            self._edit(start, end, written)

    def _mapping(self, node: yaml.MappingNode, old: dict[str, Any], new: dict[str, Any]) -> None:
        pairs = {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}
        if not any(key in new for key in pairs):
            raise SpliceError("nothing would be left of a mapping")
        column = node.value[0][0].start_mark.column
        for key in old:
            if key not in pairs:
                if key not in new or not same(old[key], new[key]):
                    raise SpliceError(f"{key} comes from elsewhere (a merged key)")
                continue
            named, value = pairs[key]
            if key in new:
                self.change(value, old[key], new[key], named.start_mark.column)
            else:
                self._edit(self._line(named.start_mark.index), self._next_line(_end(value)), "")
        added = {key: value for key, value in new.items() if key not in old}
        if added:
            self._insert(self._next_line(_end(node)), added, column)

    def _sequence(self, node: yaml.SequenceNode, old: list[Any], new: list[Any]) -> None:
        if not new:
            raise SpliceError("nothing would be left of a list")
        head, both, tail = aligned(old, new)
        column = node.start_mark.column
        for at in range(head, head + both):
            self.change(node.value[at], old[at], new[at], column)
        for at in range(head + both, len(old) - tail):
            self._edit(self._dash(node, at), self._next_line(_end(node.value[at])), "")
        added = new[head + both : len(new) - tail]
        if added:
            at = head + both
            place = self._above(self._dash(node, 0)) if at == 0 else self._next_line(_end(node.value[at - 1]))
            self._insert(place, added, column)

    def _flow_mapping(self, node: yaml.MappingNode, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Values that change, and keys behind the last or of the last; else it is written anew."""
        kept = [key for key in old if key in new]
        ends = [int(value.end_mark.index) for _, value in node.value]
        keys = [key.value for key, _ in node.value]
        if not kept or keys != list(old) or kept != keys[: len(kept)]:
            return self._anew(node, new)
        for key, (_, value) in zip(kept, node.value, strict=False):
            self.change(value, old[key], new[key], _IN_FLOW)
        added = [f"{inline(key, None)}: {inline(new[key], None)}" for key in new if key not in old]
        return self._flow_tail(ends, len(kept), added)

    def _flow_sequence(self, node: yaml.SequenceNode, old: list[Any], new: list[Any]) -> None:
        shorter = min(len(old), len(new))
        if not shorter:
            return self._anew(node, new)
        for value, before, after in zip(node.value, old, new, strict=False):
            self.change(value, before, after, _IN_FLOW)
        ends = [int(value.end_mark.index) for value in node.value]
        return self._flow_tail(ends, shorter, [inline(one, None) for one in new[shorter:]])

    def _flow_tail(self, ends: list[int], kept: int, added: list[str]) -> None:
        """Only the first `kept` stay, and these come behind them."""
        self._edit(ends[kept - 1], ends[-1], "".join(f", {one}" for one in added))

    def _anew(self, node: yaml.Node, new: Any) -> None:
        self._edit(node.start_mark.index, node.end_mark.index, json.dumps(new, ensure_ascii=False))

    def _dash(self, node: yaml.SequenceNode, at: int) -> int:
        """Where the line begins in which the item's dash stands."""
        column = node.start_mark.column
        place = node.value[at].start_mark.index if at else node.start_mark.index
        while True:
            begin = self.text.rfind("\n", 0, place) + 1
            if self.text[begin : begin + column + 1] == " " * column + "-":
                return begin
            if begin == 0:
                raise SpliceError("a list in a line of something else")
            place = begin - 1

    def _line(self, place: int) -> int:
        """Where its line begins, if nothing else stands before it there."""
        begin = self.text.rfind("\n", 0, place) + 1
        if self.text[begin:place].strip(" "):
            raise SpliceError("something else stands before it in its line")
        return begin

    def _above(self, begin: int) -> int:
        """Above the comments that stand right above this line: they are about what it holds."""
        while begin:
            before = self.text.rfind("\n", 0, begin - 1) + 1
            if not self.text[before:begin].lstrip(" ").startswith("#"):
                return begin
            begin = before
        return begin

    def _next_line(self, place: int) -> int:
        if place == 0 or self.text[place - 1] == "\n":
            return place
        end = self.text.find("\n", place)
        return len(self.text) if end < 0 else end + 1

    def _insert(self, place: int, value: Any, indent: int) -> None:
        lines = [" " * indent + line for line in block(value).splitlines()]
        text = "".join(line + self.newline for line in lines)
        if place and self.text[place - 1] != "\n":
            text = self.newline + text.rstrip("\r\n")
        self._edit(place, place, text)

    def _literal(self, node: yaml.ScalarNode, new: str) -> None:
        raw = self.text[node.start_mark.index : node.end_mark.index]
        header, _, body = raw.partition("\n")
        first = next((line for line in body.split("\n") if line.strip()), "")
        indent = len(first) - len(first.lstrip(" "))
        if not re.match(r"[|>][-+]?\s*(#.*)?$", header) or not indent:
            raise SpliceError("a block of text with an indentation of its own")
        left = body[len(body.rstrip(" \r\n")) :]
        lines = [" " * indent + line if line else "" for line in new.rstrip("\n").split("\n")]
        text = f"|{header[1:]}\n" + self.newline.join(lines) + left
        self._edit(node.start_mark.index, node.end_mark.index, text)

    def _edit(self, start: int, end: int, text: str) -> None:
        self.edits.append(_Edit(start, end, text))


def _end(node: yaml.Node) -> int:
    """Where it really ends: a collection in block style is said to end where the next thing begins."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)
