"""Where kopf finds the API server from inside a pod."""

from __future__ import annotations

import pytest

pytest.importorskip("kopf")

import kopf

from stanch.edge.handlers import in_pod

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("host", "port", "server"),
    [
        ("10.96.0.1", "443", "https://10.96.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
        ("10.96.0.1", None, "https://10.96.0.1:443"),
        (None, None, "https://kubernetes.default.svc"),
    ],
)
def test_at_the_address_that_every_pod_is_told(
    monkeypatch: pytest.MonkeyPatch, host: str | None, port: str | None, server: str
) -> None:
    """The cluster's DNS is not needed, nor is it where there is none, as in the test bed."""
    for name, value in (("HOST", host), ("PORT", port)):
        if value is None:
            monkeypatch.delenv(f"KUBERNETES_SERVICE_{name}", raising=False)
        else:
            monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", value)
    given = in_pod(kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="t"))
    assert given is not None
    assert (given.server, given.token) == (server, "t")
    assert in_pod(None) is None
