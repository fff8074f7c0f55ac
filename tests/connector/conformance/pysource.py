"""What a tree of Python sources defines, read without importing it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def parse(file: Path) -> ast.Module:
    """The file's syntax tree; an empty one where there is no such file."""
    return ast.parse(file.read_text() if file.is_file() else "", filename=str(file))


def find_class(files: tuple[Path, ...], *names: str) -> ClassView | None:
    """The first of these classes that one of the files defines at its top level."""
    for name in names:
        for file in files:
            for node in parse(file).body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return ClassView(node, files)
    return None


class ClassView:
    """A class and, where the same files define them, its bases."""

    def __init__(self, node: ast.ClassDef, files: tuple[Path, ...]) -> None:
        self.node, self.name = node, node.name
        self._files = files

    def lineage(self) -> Iterator[ClassView]:
        """The class, then its bases that are found here, depth first."""
        yield self
        for base in self.node.bases:
            if isinstance(base, ast.Name):
                found = find_class(self._files, base.id)
                if found is not None:
                    yield from found.lineage()

    def method(self, name: str) -> Function | None:
        for one in self.lineage():
            for node in one.node.body:
                if isinstance(node, Function) and node.name == name:
                    return node
        return None

    def arguments(self, name: str) -> tuple[str, ...] | None:
        """The method's arguments after self or cls; None where there is no such method."""
        found = self.method(name)
        if found is None:
            return None
        asked = found.args
        return tuple(one.arg for one in (*asked.posonlyargs, *asked.args, *asked.kwonlyargs))[1:]

    def needed(self, name: str) -> int:
        """How many arguments after self a call of the method must give."""
        found = self.method(name)
        if found is None:
            return 0
        asked = found.args
        by_place = len(asked.posonlyargs) + len(asked.args) - 1 - len(asked.defaults)
        return by_place + sum(default is None for default in asked.kw_defaults)

    def fields(self) -> frozenset[str]:
        """Names bound in the class body (an enum's members, a dataclass's fields)."""
        bound: set[str] = set()
        for one in self.lineage():
            for node in one.node.body:
                bound.update(target.id for target in _targets(node) if isinstance(target, ast.Name))
        return frozenset(bound)

    def attributes(self) -> frozenset[str]:
        """Names that __init__ binds on self."""
        bound: set[str] = set()
        for one in self.lineage():
            for node in one.node.body:
                if isinstance(node, Function) and node.name == "__init__":
                    bound.update(
                        target.attr
                        for inner in ast.walk(node)
                        for target in _targets(inner)
                        if isinstance(target, ast.Attribute)
                        and isinstance(target.value, ast.Name)
                        and target.value.id == "self"
                    )
        return frozenset(bound)


def called(node: ast.AST) -> frozenset[str]:
    """Names of what is called in it, without what they are looked up on."""
    calls = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return frozenset(
        one.attr if isinstance(one, ast.Attribute) else one.id
        for one in calls
        if isinstance(one, ast.Attribute | ast.Name)
    )


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [
            inner
            for target in node.targets
            for inner in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
    return [node.target] if isinstance(node, ast.AnnAssign) else []
