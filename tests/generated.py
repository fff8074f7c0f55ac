"""Files made from code: `python -m tests.generated` writes them, `--check` fails where one has drifted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from stanch.api import chart
from stanch.api.document import kinds_md
from stanch.api.generate import files
from stanch.core.phases import TRANSITIONS, Event, Phase
from stanch.core.policy import Policy
from stanch.edge.monitoring.files import files as monitoring_files
from stanch.edge.policy_file import as_yaml

TOP = Path(__file__).parents[1]


def states() -> str:
    """The transition table of the detector, as a diagram and as rows."""
    arrows: dict[tuple[Phase, Phase], list[Event]] = {}
    for (phase, event), after in TRANSITIONS.items():
        arrows.setdefault((phase, after), []).append(event)
    diagram = [
        f"    {a.value} --> {b.value}: {', '.join(e.value for e in events)}"
        for (a, b), events in arrows.items()
    ]
    rows = [
        f"| {phase.value} | {event.value} | {after.value} |" for (phase, event), after in TRANSITIONS.items()
    ]
    return "\n".join(
        [
            "# States of an engine",
            "",
            "Made from the table of `operator/stanch/core/phases.py`; what is not in it raises.",
            "",
            "```mermaid",
            "stateDiagram-v2",
            "    [*] --> new",
            *diagram,
            "```",
            "",
            "| phase | event | then |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


def policy() -> str:
    return as_yaml(Policy())


def install_md() -> str:
    """The page as it is, with the table of the chart's values made anew."""
    return chart.with_table((TOP / "docs/install.md").read_text(encoding="utf-8"))


GENERATED: dict[str, Callable[[], str]] = {
    "docs/states.md": states,
    "docs/policy.yaml": policy,
    "docs/kinds.md": kinds_md,
    "docs/install.md": install_md,
}


def generated() -> dict[str, str]:
    """All generated files, by their place in the repository."""
    return {name: make() for name, make in GENERATED.items()} | files() | chart.files() | monitoring_files()


def main(arguments: list[str]) -> int:
    drifted = []
    for name, text in generated().items():
        path = TOP / name
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            drifted.append(name)
    if drifted:
        print(f"not as the code makes them: {', '.join(drifted)}; run `make fmt`", file=sys.stderr)
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
