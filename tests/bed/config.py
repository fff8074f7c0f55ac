"""Command lines and configuration files of one node, as texts; paths as the bed's namespaces have them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bed.build import Kube
from tests.bed.place import API_PORT, NODE_IP, NODE_NAME, POD_SUBNET, SERVICE_SUBNET, Place

CNI_PLUGINS = Path("/usr/lib/cni")
PAUSE_IMAGE = "stanch.test/pause:1"
# Who talks to the API server: user name and group.
USERS = {
    "admin": ("admin", "system:masters"),
    "node": (f"system:node:{NODE_NAME}", "system:nodes"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
}


def write(place: Place) -> None:
    """Every file that a component is given, but those of pki.py."""
    tokens = {user: secrets.token_hex(16) for user in USERS}
    rows = [f'{token},{USERS[user][0]},{user},"{USERS[user][1]}"' for user, token in tokens.items()]
    _secret(place.pki / "tokens.csv", "\n".join(rows) + "\n")
    for user, token in tokens.items():
        path = place.kubeconfig if user == "admin" else place.state / f"{user}.kubeconfig"
        _secret(path, kubeconfig(place.context, f"https://127.0.0.1:{API_PORT}", place.pki / "ca.crt", token))
    place.state.joinpath("containerd.toml").write_text(_containerd(place))
    place.state.joinpath("kubelet.json").write_text(json.dumps(_kubelet(place)))
    cni = place.state / "cni"
    cni.mkdir()
    cni.joinpath("10-stanch.conflist").write_text(json.dumps(_network(place)))
    # The kubelet copies it into pods. There is no DNS, and nobody outside whom one could ask.
    place.state.joinpath("resolv.conf").write_text("nameserver 127.0.0.53\n")


def kubeconfig(context: str, server: str, authority: Path | None, token: str) -> str:
    """A kubeconfig with one context. JSON, which is YAML too."""
    cluster: dict[str, Any] = {"server": server}
    if authority is not None:
        cluster["certificate-authority"] = str(authority)
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": context, "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": "user"}}],
            "current-context": context,
        },
        indent=1,
    )


def api_server(program: Path, pki: Path, etcd: str, port: int = API_PORT) -> list[str]:
    """Its command line. Also the oldest supported one is started with it."""
    return [
        str(program),
        f"--etcd-servers={etcd}",
        f"--advertise-address={NODE_IP}",
        f"--secure-port={port}",
        f"--tls-cert-file={pki / 'api.crt'}",
        f"--tls-private-key-file={pki / 'api.key'}",
        f"--token-auth-file={pki / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        # As on OpenShift: who sets an owner needs rights for that.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--service-cluster-ip-range={SERVICE_SUBNET}",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def etcd(program: Path, data: Path, port: int = 2379) -> list[str]:
    """Its command line. It may lose what it holds: the bed does not outlive the machine."""
    url, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
    return [
        str(program),
        f"--data-dir={data}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def components(place: Place, kube: Kube) -> Mapping[str, list[str]]:
    """Name to command line, in the order in which they are started."""
    state, pki = place.state, place.pki
    return {
        "etcd": etcd(kube.program("etcd"), state / "etcd"),
        "kube-apiserver": api_server(kube.program("kube-apiserver"), pki, "http://127.0.0.1:2379"),
        "containerd": ["containerd", "--config", str(state / "containerd.toml")],
        "kube-controller-manager": [
            str(kube.program("kube-controller-manager")),
            f"--kubeconfig={state / 'controllers.kubeconfig'}",
            f"--service-account-private-key-file={pki / 'sa.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            "--use-service-account-credentials",
            # Its own limits of 20 a second are for clusters of many; here they cost seconds of each start.
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        ],
        "kube-scheduler": [
            str(kube.program("kube-scheduler")),
            f"--kubeconfig={state / 'scheduler.kubeconfig'}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        ],
        "kubelet": [
            str(kube.program("kubelet")),
            f"--kubeconfig={state / 'node.kubeconfig'}",
            f"--config={state / 'kubelet.json'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_IP}",
        ],
        "kube-proxy": [
            str(kube.program("kube-proxy")),
            f"--kubeconfig={state / 'proxy.kubeconfig'}",
            f"--hostname-override={NODE_NAME}",
            f"--cluster-cidr={POD_SUBNET}",
            "--proxy-mode=iptables",
            # Zeros: leave the machine's connection tracking as it is; a namespace may not change it.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
        ],
    }


def _containerd(place: Place) -> str:
    return f"""\
version = 2
root = "{place.state}/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # A container runtime without CAP_SYS_RESOURCE may not lower an OOM score, and runc dies of the attempt.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{place.state}/cni"
"""


def _network(place: Place) -> dict[str, Any]:
    """Pods on point-to-point links: unlike on a bridge, an answer from one pod to another is routed, and so
    passes the rules that undo a Service's address."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": POD_SUBNET}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni",
    }
    links = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": place.context, "plugins": [links, ports]}


def _kubelet(place: Place) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # Nobody reaches its port but from the bed's own network namespace.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{place.cgroup}",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        # Never to change a kernel setting, which would be the whole machine's: see inside.py.
        "protectKernelDefaults": True,
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{place.state}/resolv.conf",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # Images come by hand and cannot be pulled again.
        "imageGCHighThresholdPercent": 100,
        "maxPods": 250,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }


def _secret(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text)
