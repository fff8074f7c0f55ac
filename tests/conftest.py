"""Tiers of tests: each test belongs to one, and a run ends by saying which did not run and what they need."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Generator
from typing import Any, Protocol, runtime_checkable

import pytest

TIERS = {
    "unit": "`make setup`, and for the rules of Prometheus Debian's package prometheus",
    "engine": "real vLLM engines on the CPU: `make test-engines` (installs 7 GB outside the checkout, once)",
    "cluster": "a real Kubernetes: `make test-cluster` (root; built once, outside the checkout, in 8 min)",
    "e2e": "real vLLM engines on a real Kubernetes: `make test-e2e` (what the two tiers before need)",
}


@runtime_checkable
class Telling(Protocol):
    """A fixture's value that can tell what went on: a failed test shows it."""

    def story(self) -> str: ...


_ran: Counter[str] = Counter()
_skipped: Counter[tuple[str, str]] = Counter()
# Of this process; of each worker where there are workers (pytest-xdist), which all collect the same.
_left_out: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with SIGINT ignored, and children inherit that: no Ctrl-C would come.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for tier, needs in TIERS.items():
        config.addinivalue_line("markers", f"{tier}: needs {needs}")


def _tier(item: pytest.Item) -> str:
    tiers = [tier for tier in TIERS if item.get_closest_marker(tier)]
    if len(tiers) != 1:
        raise pytest.UsageError(
            f"{item.nodeid} must have one tier of {', '.join(TIERS)}, not {tiers or 'none'}"
        )
    return tiers[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        _tier(item)


def pytest_deselected(items: list[pytest.Item]) -> None:
    _left_out.update(_tier(item) for item in items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what its fixtures tell."""
    report = yield
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    for name, found in arguments.items() if report.failed else ():
        if isinstance(found, Telling):
            try:
                report.sections.append((name, found.story()))
            except Exception as error:  # what it would tell of may be away
                report.sections.append((name, repr(error)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    tier = next(tier for tier in TIERS if tier in report.keywords)
    if report.skipped:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skipped[tier, why.removeprefix("Skipped: ")] += 1
    elif report.when == "call":
        _ran[tier] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    _left_out.update(Counter(getattr(node, "workeroutput", {}).get("left_out", {})) - _left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("tiers")
    for tier, needs in TIERS.items():
        if _ran[tier]:
            terminalreporter.line(f"{tier}: {_ran[tier]} ran")
        if _left_out[tier]:
            terminalreporter.line(f"{tier}: {_left_out[tier]} DID NOT RUN (not asked for); needs {needs}")
        for (of, why), count in _skipped.items():
            if of == tier:
                terminalreporter.line(f"{tier}: {count} SKIPPED: {why}; needs {needs}")
        if not (_ran[tier] or _left_out[tier] or any(of == tier for of, _ in _skipped)):
            terminalreporter.line(f"{tier}: none collected; needs {needs}")
