"""Which cluster and which namespace a command means: the options of kubectl, with kubectl's own defaults."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stanch.edge.errors import FileError

if TYPE_CHECKING:
    from stanch.edge.cluster import Cluster, ClusterError

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULT_FILE = "~/.kube/config"
# Many hundred clusters with their certificates; of another file PyYAML would read a megabyte in seconds.
_MOST_BYTES = 4 << 20
# Where a pod finds its own namespace; without a kubeconfig we are taken to be in one, as kubectl does it.
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Kube:
    """kubeconfig: files as $KUBECONFIG has them, None in a pod. context: None where no file names one."""

    kubeconfig: str | None
    context: str | None
    namespace: str

    def cluster(self, own_namespace: str = "stanch-system") -> Cluster:
        """Not entered yet. own_namespace: the operator's."""
        from stanch.edge.cluster import Cluster

        return Cluster(self.kubeconfig, self.context, own_namespace)


def kube_options(command: F) -> F:
    """--namespace, --context, --kubeconfig; the command gets `kube`."""

    @functools.wraps(command)
    def told(*, kubeconfig: str | None, context: str | None, namespace: str | None, **others: Any) -> Any:
        return command(kube=kube_of(kubeconfig, context, namespace), **others)

    found: Any = told
    for option in (
        click.option(
            "--kubeconfig", envvar="KUBECONFIG", help="As kubectl's; else $KUBECONFIG, ~/.kube/config."
        ),
        click.option("--context", help="Context of the kubeconfig, if not its current one."),
        click.option("-n", "--namespace", help="If not the context's."),
    ):
        found = option(found)
    return found  # type: ignore[no-any-return]


def prometheus_option(command: F) -> F:
    """--prometheus-table."""
    return click.option(
        "--prometheus-table",
        type=click.Path(path_type=Path),
        envvar="STANCH_PROMETHEUS_TABLE",
        help="The operator's table of Prometheus servers that may be asked (docs/prometheus.md).",
    )(command)


def all_namespaces_option(command: F) -> F:
    """-A, as `everywhere`."""
    return click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces.")(command)


def sentence(error: ClusterError) -> str:
    """What the API server said, for people: of an object that it does not take, which field is wrong."""
    from stanch.api.names import GROUP
    from stanch.edge.cluster import NotFound
    from stanch.edge.permissions import INSTALL_KINDS

    wrong = [
        f"{cause['field']}: {cause.get('message', '')}"
        for cause in error.causes
        if cause.get("field") not in (None, "", "<nil>")
    ]
    if wrong:
        return "; ".join(wrong)
    if isinstance(error, NotFound) and not error.status:
        # A path that no API serves is answered in plain text.
        return f"the cluster does not know the kinds of {GROUP}: {INSTALL_KINDS}"
    return str(error)


def kube_of(kubeconfig: str | None, context: str | None, namespace: str | None) -> Kube:
    """What the options mean. Raises FileError where a kubeconfig cannot be read."""
    if not kubeconfig:
        # A home that there is not, or that may not be looked into (a pod under another user), has none;
        # Path's own functions raise then.
        default = os.path.expanduser(_DEFAULT_FILE)  # noqa: PTH111
        kubeconfig = default if os.path.isfile(default) else None  # noqa: PTH113
    if not kubeconfig:
        return Kube(None, None, namespace or _own_namespace())
    read = list(_read(kubeconfig))
    # Of several files the first that says it counts (kubectl; the Python client takes the last).
    context = context or next((found for one in read if (found := _text(one.get("current-context")))), None)
    return Kube(kubeconfig, context, namespace or _namespace_of(read, context) or "default")


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _read(kubeconfig: str) -> Iterator[dict[str, Any]]:
    import yaml

    for part in filter(None, kubeconfig.split(":")):
        path = os.path.expanduser(part)  # noqa: PTH111 - Path's own raises where there is no such user
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                raw = file.read(_MOST_BYTES + 1)
            if len(raw) > _MOST_BYTES:
                raise FileError(f"{path}: this is no kubeconfig: it is larger than {_MOST_BYTES >> 20} MB")
            found = yaml.safe_load(raw.decode("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            continue  # as kubectl; that there is none at all is said when the cluster is to be reached
        except UnicodeDecodeError:
            raise FileError(f"{path}: the kubeconfig cannot be read: it is not UTF-8 text") from None
        except RecursionError:
            raise FileError(f"{path}: the kubeconfig is nested too deeply, or contains itself") from None
        except (LookupError, AttributeError):
            # What the loader raises for `!!bool nonsense` and `!!timestamp nonsense`.
            raise FileError(
                f"{path}: the kubeconfig cannot be read: a value is not what its tag says"
            ) from None
        except (OSError, ValueError, yaml.YAMLError) as error:
            why = getattr(error, "strerror", None) or getattr(error, "problem", None) or error
            raise FileError(f"{path}: the kubeconfig cannot be read: {why}") from None
        if not isinstance(found, dict):
            raise FileError(f"{path}: this is no kubeconfig")
        yield found


def _namespace_of(read: list[dict[str, Any]], context: str | None) -> str | None:
    for one in read:
        contexts = one.get("contexts")
        for entry in contexts if isinstance(contexts, list) else ():
            if (
                isinstance(entry, dict)
                and entry.get("name") == context
                and isinstance(entry.get("context"), dict)
            ):
                return _text(entry["context"].get("namespace"))
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
