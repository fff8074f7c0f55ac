"""Makes the kit's own code raise, inside a test engine. Nothing of the kit knows of it.

It stands in the kit's place as vLLM's plug-in (see chaos.py), so it is there before the first line of the kit
is. Every function and method of the kit is wrapped as its module is imported, and gets a name:

    function:engine.kit.answer     the function raises when it is called
    hook:add_request               what the guard runs under the name `add_request` raises

The second kind is found by shape: a function of ours with an argument `hook` or `name` and one of `note`,
`call` or `work` runs the latter under the former. A hook that is added later is found with it.

The directory in STANCH_CHAOS holds `control`, JSON that names what raises: {"round": n, "points": [...] or
"all", "but": [beginnings of what "all" leaves out], "times": how often in each process, null for ever}. Each
process writes `seen-PID` and `raised-PID` there, a line "ROUND POINT" for the first call of a point in a
round, and for each raise.
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any

PACKAGE = "stanch_connector"
# The net itself, and what does not run in an engine.
LEFT_ALONE = ("engine.guard", "contract", "install")


class ChaosError(RuntimeError):
    """Raised on purpose."""


class Control:
    """The file, read anew whenever it was replaced."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._stamp: tuple[int, int] | None = None
        self._said: dict[str, Any] = {"round": 0, "points": [], "times": 0}
        self._seen: set[str] = set()
        self._raised: Counter[str] = Counter()

    def reached(self, point: str) -> None:
        """Raises ChaosError where the file says so."""
        self._look()
        if point not in self._seen:
            self._seen.add(point)
            self._note("seen", point)
        points, times = self._said["points"], self._said["times"]
        but = tuple(self._said["but"])
        meant = not point.startswith(but) if points == "all" else point in points
        if meant and (times is None or self._raised[point] < times):
            self._raised[point] += 1
            self._note("raised", point)
            raise ChaosError(point)

    def _look(self) -> None:
        path = f"{self._directory}/control"
        try:
            about = os.stat(path)  # noqa: PTH116  (on every call of every function of the kit)
            stamp = about.st_ino, about.st_mtime_ns
            if stamp != self._stamp:
                with open(path) as file:  # noqa: PTH123
                    self._said = json.load(file)
                self._stamp = stamp
                self._seen.clear()
                self._raised.clear()
        except FileNotFoundError:
            pass

    def _note(self, what: str, point: str) -> None:
        with open(f"{self._directory}/{what}-{os.getpid()}", "a") as file:  # noqa: PTH123
            file.write(f"{self._said['round']} {point}\n")


class _Loader(Loader):
    """Runs the real loader, then wraps what the module defines."""

    def __init__(self, real: Loader, control: Control) -> None:
        self._real, self._control = real, control

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        name = module.__name__.removeprefix(PACKAGE + ".")
        if not name.startswith(LEFT_ALONE):
            for key, value in list(vars(module).items()):
                if getattr(value, "__module__", None) != module.__name__:
                    continue
                if isinstance(value, type) and not issubclass(value, enum.Enum):
                    self._wrap_all(value, module, f"{name}.{key}")
                elif isinstance(value, FunctionType) and _written_in(value, module):
                    setattr(module, key, wrapped(value, f"{name}.{key}", self._control))

    def _wrap_all(self, owner: type, module: ModuleType, name: str) -> None:
        for key, value in list(vars(owner).items()):
            if isinstance(value, FunctionType) and _written_in(value, module):
                setattr(owner, key, wrapped(value, f"{name}.{key}", self._control))


class _Finder(MetaPathFinder):
    """Steps in for the kit's modules and for nothing else."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PACKAGE + "."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._control)
        return spec


def wrapped(function: Callable[..., Any], name: str, control: Control) -> Callable[..., Any]:
    """The function, raising where the control says so."""
    point = f"function:{name}"
    runs = _runs_under_a_name(function)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*args: Any, **kwargs: Any) -> Any:
            control.reached(point)
            return await function(*args, **kwargs)

        return later

    @functools.wraps(function)
    def now(*args: Any, **kwargs: Any) -> Any:
        control.reached(point)
        if runs is not None:
            args, kwargs = runs(args, kwargs, control)
        return function(*args, **kwargs)

    return now


def _runs_under_a_name(function: Callable[..., Any]) -> Any:
    """What puts a raise into the work that such a function is given; None for all other functions."""
    signature = inspect.signature(function)
    name = next((one for one in ("hook", "name") if one in signature.parameters), None)
    work = next((one for one in ("note", "call", "work") if one in signature.parameters), None)
    if name is None or work is None:
        return None

    def with_a_raise(args: Any, kwargs: Any, control: Control) -> tuple[Any, Any]:
        bound = signature.bind(*args, **kwargs)
        hook, real = bound.arguments[name], bound.arguments[work]

        def raising(*inner: Any, **more: Any) -> Any:
            control.reached(f"hook:{hook}")
            return real(*inner, **more)

        bound.arguments[work] = raising
        return bound.args, bound.kwargs

    return with_a_raise


def _written_in(function: FunctionType, module: ModuleType) -> bool:
    """Not made by a decorator such as dataclass."""
    return function.__code__.co_filename == module.__file__


def register() -> None:
    """In the place of the kit's own entry point, which it then calls."""
    directory = os.environ.get("STANCH_CHAOS")
    if directory and not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder(Control(directory)))
    from stanch_connector import plugin

    plugin.register()
