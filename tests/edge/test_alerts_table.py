"""Which pod an alert is about: the default table over the usual labels, and tables of people."""

from __future__ import annotations

from pathlib import Path

import pytest

from stanch.edge.alerts_table import DEFAULT, Mapping, Place, Table, load_table, place_of
from stanch.edge.errors import FileError

pytestmark = pytest.mark.unit
row = pytest.param

# The exporter's own, as Prometheus writes them beside those of what is exported.
EXPORTER = {"namespace": "monitoring", "pod": "exporter-0", "instance": "10.0.0.1:8080", "job": "x"}


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        row(
            {"namespace": "shop", "pod": "d-0", "instance": "10.0.0.7:8000", "engine": "1"},
            Place("shop", pod="d-0", engine="1"),
            id="PodMonitor",
        ),
        row(
            {"kubernetes_namespace": "shop", "kubernetes_pod_name": "d-0", "instance": "10.0.0.7:8000"},
            Place("shop", pod="d-0"),
            id="annotations",
        ),
        row(
            {**EXPORTER, "exported_namespace": "shop", "exported_pod": "d-0"},
            Place("shop", pod="d-0"),
            id="through-an-exporter",
        ),
        row({**EXPORTER, "exported_namespace": "shop"}, Place("monitoring", pod="exporter-0"), id="half"),
        row(
            {"namespace": "shop", "pod": "epp-0", "model_server_pod": "d-0", "name": "pool"},
            Place("shop", pod="d-0"),
            id="llm-d-endpoint-picker",
        ),
        row(
            {"namespace": "shop", "instance": "10.0.0.7:8000"},
            Place("shop", address="10.0.0.7"),
            id="address-and-namespace",
        ),
        row({"instance": "10.0.0.7:8000"}, Place(None, address="10.0.0.7"), id="address"),
        row({"instance": "10.0.0.7"}, Place(None, address="10.0.0.7"), id="address-without-port"),
        row({"instance": "[fd00::7]:8000"}, Place(None, address="fd00::7"), id="address-of-version-6"),
        row({"instance": "FD00:0:0::7"}, Place(None, address="fd00::7"), id="as-Kubernetes-writes-it"),
        row({"namespace": "shop", "pod": "d.0-x"}, Place("shop", pod="d.0-x"), id="dots"),
    ],
)
def test_by_the_default(labels: dict[str, str], place: Place) -> None:
    assert place_of(DEFAULT, {"alertname": "x", **labels}) == place


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        row({}, "it has none of the labels that would name its pod: exported_namespace and", id="nothing"),
        row({"pod": "d-0"}, "none of the labels", id="no-namespace"),
        row({"namespace": "shop", "pod": ""}, "none of the labels", id="empty"),
        row({"namespace": "Shop", "pod": "d"}, "namespace is no name of a namespace: 'Shop'", id="namespace"),
        row({"namespace": "a.b", "pod": "d"}, "namespace is no name of a namespace", id="dots"),
        row({"namespace": "s", "pod": "d" * 254}, f"pod is no name of a pod: '{'d' * 57}...'", id="long"),
        row({"namespace": "s" * 64, "pod": "d"}, "no name of a namespace", id="long-namespace"),
        row({"namespace": "s", "pod": "d\n"}, "no name of a pod: 'd?'", id="a-line-more"),
        row({"namespace": "s", "pod": "../../x"}, "no name of a pod", id="a-path"),
        row({"instance": "vllm:8000"}, "does not begin with the IP address of a pod: 'vllm:8000'", id="name"),
        row({"instance": "[fe80::1%eth0]:80"}, "does not begin with the IP address", id="zone"),
        row({"instance": "1.2.3:80"}, "does not begin with the IP address", id="three"),
    ],
)
def test_what_names_no_pod(labels: dict[str, str], says: str) -> None:
    why = place_of(DEFAULT, labels)
    assert isinstance(why, str)
    assert says in why


def test_a_table_of_people(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text("mappings:\n- {namespace: ns, pod: container_pod, engine: dp_rank}\n- instance: target\n")
    table = load_table(path)
    assert place_of(table, {"ns": "shop", "container_pod": "d-0", "dp_rank": "3\n"}) == Place(
        "shop", pod="d-0", engine="3?"
    )
    assert place_of(table, {"ns": "shop", "target": "10.0.0.7:1"}) == Place(None, address="10.0.0.7")
    assert isinstance(place_of(table, {"namespace": "shop", "pod": "d-0"}), str)
    assert load_table(None) is DEFAULT


@pytest.mark.parametrize(
    ("text", "says"),
    [
        row("", "1: mappings is missing", id="empty"),
        row("mappings: []\n", "1: mappings must not be empty", id="no-mapping"),
        row("- pod: pod\n", "1: must be a mapping of names to values, not a list", id="a-list"),
        row(
            "mappings:\n- {namespace: a, pod: b}\n- namespace: a\n  pood: c\n",
            "4: mappings.1.pood is not a known key; did you mean pod?",
            id="key",
        ),
        row("mappings:\n- namespace: a\n", "2: mappings.0: exactly one of pod and instance", id="neither"),
        row("mappings:\n- {namespace: a, pod: b, instance: c}\n", "2: mappings.0: exactly one", id="both"),
        row("mappings:\n- pod: b\n", "2: mappings.0: pod needs namespace beside it", id="no-namespace"),
        row("mappings:\n- instance: 'a b'\n", "2: mappings.0.instance must match", id="no-label"),
        row("mappings:\n- instance: [a]\n", "2: mappings.0.instance must be a string", id="list-of-labels"),
        row("mappings:\n- {instance: a, instance: b}\n", "2: instance is given twice", id="twice"),
    ],
)
def test_a_table_that_is_wrong_is_refused_by_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        load_table(path)
    assert str(caught.value).startswith(f"{path}:{says}"), caught.value


def test_the_first_mapping_counts() -> None:
    first, second = Mapping(namespace="a", pod="b"), Mapping(namespace="c", pod="d")
    labels = {"a": "x", "b": "one", "c": "x", "d": "two"}
    assert place_of(Table(mappings=(first, second)), labels) == Place("x", pod="one")
    assert place_of(Table(mappings=(second, first)), labels) == Place("x", pod="two")
