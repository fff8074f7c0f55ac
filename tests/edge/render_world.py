"""DisaggDeployments for tests of rendering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stanch.api.v1alpha1 import DisaggDeployment
from stanch.edge.render import Object, Place, Rendered, render

PLACE = Place("stanch.test/stanch:1")


def deployment(
    decode: Mapping[str, Any] | None = None,
    prefill: Mapping[str, Any] | None = None,
    namespace: str = "web",
    **spec: Any,
) -> DisaggDeployment:
    """shop, with these fields of its roles and of its spec."""
    engine = {"image": "vllm:0.29"}
    roles = [
        {"name": name, "engine": {**engine, **(given or {}).get("engine", {})}}
        | {key: value for key, value in (given or {}).items() if key != "engine"}
        for name, given in (("prefill", prefill), ("decode", decode))
    ]
    return DisaggDeployment.model_validate(
        {
            "metadata": {
                "name": "shop",
                "namespace": namespace,
                "labels": {"team": "a"},
                "annotations": {"a": "b"},
            },
            "spec": {"model": {"uri": "some/model"}, "roles": roles, **spec},
        }
    )


def rendered(of: DisaggDeployment, place: Place = PLACE) -> Rendered:
    """Where nothing is wrong with it."""
    found = render(of, place)
    assert [str(one) for one in found.problems] == []
    return found


def one(found: Rendered, kind: str, name: str) -> Object:
    (only,) = [it for it in found.objects if (it["kind"], it["metadata"]["name"]) == (kind, name)]
    return only


def pod(found: Rendered, role: str = "decode") -> Object:
    spec = one(found, "Deployment", f"shop-{role}")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def container(found: Rendered, role: str = "decode", name: str = "vllm") -> Object:
    (only,) = [it for it in pod(found, role)["containers"] if it["name"] == name]
    assert isinstance(only, dict)
    return only


def problems(of: DisaggDeployment, place: Place = PLACE) -> list[str]:
    found = render(of, place)
    assert found.objects == ()
    return [str(one) for one in found.problems]
