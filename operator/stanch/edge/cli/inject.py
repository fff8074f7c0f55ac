"""`stanch inject`: the engine kit into manifests, before they are applied."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from stanch.api.names import ANNOTATION_INJECT_CONTAINER
from stanch.edge.errors import FileError

_MOST_BYTES = 16 * 1024 * 1024


@click.command()
@click.option(
    "-f", "--filename", "path", required=True, help="Manifests in YAML or JSON; - for standard input."
)
@click.option(
    "--image", envvar="STANCH_KIT_IMAGE", help="Stanch's own, in which the kit is ($STANCH_KIT_IMAGE)."
)
@click.option(
    "--container",
    help="The engine's, where it cannot be told which starts vLLM. Without it, what the "
    f"template's annotation {ANNOTATION_INJECT_CONTAINER} names.",
)
@click.option(
    "--connector-patch",
    type=click.Choice(["Auto", "Always", "Never"]),
    help="Put the fixed connector in place of the stock NIXL one in --kv-transfer-config.",
)
@click.option(
    "--image-volume", is_flag=True, help="Mount the image, with no init container (Kubernetes 1.33)."
)
@click.option("--remove", is_flag=True, help="Take the kit out again.")
def inject(
    path: str,
    image: str | None,
    container: str | None,
    connector_patch: str | None,
    image_volume: bool,
    remove: bool,
) -> int:
    """Print the manifests with the engine kit in every pod template that starts vLLM.

    Deployments, StatefulSets, LeaderWorkerSets, DisaggregatedSets, LLMInferenceServices, Pods and the
    like, and Lists of them; all other objects, and the comments, stay as they are. What was done is told
    on standard error. Where the kit cannot go into an engine's template, or it cannot be told which container
    is the engine, nothing is printed, and the exit code is 65.

      helm template my-release my-chart | stanch inject -f - --image IMAGE | kubectl apply -f -
    """
    if not remove and not image:
        raise click.UsageError("which image has the kit? Name it by --image (or in $STANCH_KIT_IMAGE)")
    from stanch.edge.manifests import ManifestError, changed
    from stanch.edge.render import kit
    from stanch.edge.units_raw import annotation

    def doing(template: dict[str, Any]) -> kit.Injected:
        if remove:
            return kit.remove(template)
        options = kit.KitOptions(
            image or "",
            container=container or annotation(template, ANNOTATION_INJECT_CONTAINER),
            connector_patch=next((one for one in kit.PATCHES if one == connector_patch), None),
            image_volume=image_volume,
        )
        return kit.inject(template, options)

    name = "standard input" if path == "-" else path
    text = _read(path, name)
    try:
        done = changed(text, doing)
    except ManifestError as error:
        lines = str(error).splitlines()
        raise FileError("\n".join(f"{name}: {line}" for line in lines)) from None
    if container is not None and not remove and not done.engines:
        raise FileError(f"{name}: no pod template in it has a container {container}")
    sys.stdout.buffer.write(done.text.encode())
    for line in done.notes:
        click.echo(f"stanch inject: {name}: {line}", err=True)
    what = "kit taken out" if remove else "kit put in"
    for one in done.changed:
        click.echo(f"stanch inject: {one}: {what}", err=True)
    return 0


def _read(path: str, name: str) -> str:
    """Raises FileError."""
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FileError(f"{name}: cannot be read: {error.strerror or error}") from None
    if len(raw) > _MOST_BYTES:
        raise FileError(f"{name}: is larger than {_MOST_BYTES >> 20} MB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{name}: line {raw.count(10, 0, error.start) + 1}: is not UTF-8 text") from None
