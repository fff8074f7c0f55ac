"""The real helm, and Stanch's chart by it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.bed import build
from tests.bed.place import REPOSITORY

Object = dict[str, Any]
CHART = REPOSITORY / "charts/stanch"


class HelmError(Exception):
    """helm ended with an error; the message is the command and its words."""


def helm(*arguments: str, kubeconfig: Path | None = None, stdin: str | None = None) -> str:
    """What helm prints. Without a kubeconfig it reaches no cluster. Raises HelmError, BedError."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull)}
    done = subprocess.run(
        [str(build.helm()), *arguments],
        input=stdin,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise HelmError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def template(
    values: Mapping[str, Any] | None = None,
    *,
    name: str = "stanch",
    namespace: str = "stanch-system",
    only: Sequence[str] = (),
    hooks: bool = False,
    chart: Path = CHART,
) -> list[Object]:
    """The objects of the chart. only: names of its templates, if not all of them. hooks: those too that Helm
    makes at other times than an installation. Raises HelmError."""
    arguments = ["template", name, str(chart), f"--namespace={namespace}", "--values=-"]
    arguments += [f"--show-only=templates/{one}" for one in only]
    arguments += [] if hooks else ["--no-hooks"]
    text = helm(*arguments, stdin=json.dumps(values or {}))
    return [one for one in yaml.safe_load_all(text) if one]
