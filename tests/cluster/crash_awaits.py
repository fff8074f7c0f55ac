"""Every await of the operator's loops is a place where it can be killed. Nothing of the product knows of it.

The modules below are compiled with each `await X` made into `await passed("PLACE", X)`. A place is named by
module, function and what is awaited there, as "watchdog._turn: surveyor.read"; a second one of the same name
in a function has a number.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_EDGE = "stanch.edge."
LOOPS = (
    *(
        _EDGE + name
        for name in ("watchdog", "carrying", "executor", "recording", "answering", "verifying", "survey")
    ),
    _EDGE + "cluster",
)
_HOOK = "_passed_an_await"
Passed = Callable[[str, Awaitable[Any]], Awaitable[Any]]


def of_loops(module: str) -> bool:
    return module in LOOPS or module.startswith(f"{_EDGE}cluster.")


class _Places(ast.NodeTransformer):
    """Wraps what is awaited. found: the places, in the order of the text."""

    def __init__(self, module: str) -> None:
        self.found: list[str] = []
        self._module = module.removeprefix(_EDGE)
        self._function = ""
        self._counts: Counter[str] = Counter()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        outer, self._function = self._function, node.name
        found = self.generic_visit(node)
        self._function = outer
        return found

    def visit_Await(self, node: ast.Await) -> ast.AST:
        awaited = ast.unparse(node.value.func if isinstance(node.value, ast.Call) else node.value)
        name = f"{self._module}.{self._function}: {awaited.removeprefix('self.')}"
        self._counts[name] += 1
        place = name if self._counts[name] == 1 else f"{name} {self._counts[name]}"
        self.found.append(place)
        self.generic_visit(node)
        hook = ast.Name(_HOOK, ast.Load())
        made = ast.Await(ast.Call(hook, [ast.Constant(place), node.value], []))
        return ast.fix_missing_locations(ast.copy_location(made, node))


def wrapped(module: str, source: str) -> tuple[ast.Module, list[str]]:
    """The module's code with its awaits wrapped, and their places."""
    places = _Places(module)
    tree = places.visit(ast.parse(source))
    assert isinstance(tree, ast.Module)
    return tree, places.found


class _Loader(SourceFileLoader):
    def __init__(self, module: str, path: str, passed: Passed) -> None:
        super().__init__(module, path)
        self._passed = passed

    def get_code(self, fullname: str) -> Any:
        """Never the compiled file that Python keeps: that is the product's."""
        tree, _ = wrapped(fullname, Path(self.path).read_text())
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[_HOOK] = self._passed
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def __init__(self, passed: Passed) -> None:
        self._passed = passed

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if of_loops(name) else None
        if spec is not None:
            assert spec.origin is not None
            spec.loader = _Loader(name, spec.origin, self._passed)
        return spec


def hook(passed: Passed) -> None:
    """From now on: those of the modules that are not imported yet."""
    early = [name for name in sys.modules if of_loops(name)]
    assert not early, f"imported already: {early}"
    sys.meta_path.insert(0, _Finder(passed))


def every_place(operator: Path) -> list[str]:
    """By the text of the modules. operator: the product's source root."""
    found = []
    for path in sorted(operator.glob("stanch/edge/**/*.py")):
        name = ".".join(path.relative_to(operator).with_suffix("").parts).removesuffix(".__init__")
        if of_loops(name):
            found += wrapped(name, path.read_text())[1]
    return found
