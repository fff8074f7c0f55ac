"""The values of the Helm chart; api/chart.py makes values.yaml, its schema and the table in docs/install.md.

The schema asks for every key, and values.yaml has every key: so a misspelt one is refused by its name, and so
is one that an upgrade with --reuse-values does not have.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Port = Annotated[int, Field(ge=1, le=65535)]
# As the API server takes them.
Label = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
NameOrNone = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")]
# Of Kubernetes' own types, which the API server knows better.
Raw = dict[str, Any]
Strings = dict[str, str]
PullPolicy = Literal["IfNotPresent", "Always", "Never"]
Unique = Field(json_schema_extra={"uniqueItems": True})


class Part(BaseModel):
    """A key that is not here is refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        use_attribute_docstrings=True,
        frozen=True,
        extra="forbid",
        json_schema_serialization_defaults_required=True,
    )


class Reference(Part):
    """An object of the release's namespace."""

    name: Name


class Image(Part):
    repository: Annotated[str, Field(min_length=1)] = "stanch"
    """Where the image is, without its tag."""
    tag: Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$")] = ""
    """Empty: the chart's appVersion."""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """sha256:... Where given it decides, and the tag is for people."""
    pull_policy: PullPolicy = "IfNotPresent"


class Kit(Part):
    image: str = ""
    """Whole name of the image from which engines' pods take the engine kit. Empty: the operator's own."""
    pull_policy: PullPolicy = "IfNotPresent"
    image_volume: bool = False
    """Mount that image into engines' pods as a volume, in place of an init container that copies the kit out
    of it. Needs Kubernetes 1.33 or later with the feature ImageVolume, and a runtime that has it."""


class Crds(Part):
    install: bool = True
    """Install the kinds, and upgrade them with the chart. They, and with them all watches and incidents, stay
    when the release is uninstalled. false: somebody else applies files/crds."""


class ServiceAccount(Part):
    create: bool = True
    name: NameOrNone = ""
    """Empty: the release's full name. The admission policy is named by it."""
    annotations: Strings = {}


class Rbac(Part):
    create: bool = True
    """Make the roles of the operator's account, bind them, and make those for people."""
    nodes: bool = True
    """Let it get Nodes, which is possible cluster-wide only. Without it nobody sees that a node is about to
    be drained, and a repair may begin on a pod that has to go anyway."""
    aggregate: bool = True
    """Add reading watches, deployments and incidents to the ClusterRole `view`, and writing watches and
    deployments to `edit`. Making an incident is in none of them: bind the ClusterRole that NOTES name."""


class DisaggDeployments(Part):
    enabled: bool = True
    """Let the operator make what DisaggDeployments ask for: Deployments, Services, ServiceAccounts and more.
    false: it only watches engines that others make, and a DisaggDeployment says what it may not do."""


class AdmissionPolicy(Part):
    enabled: bool = True
    """Two ValidatingAdmissionPolicies: they keep the operator's account to annotations of stanch.dev when it
    patches a pod, and to what a DisaggDeployment controls. Without them whoever has the account's token may
    replace a pod's image and change the workloads of others."""


class Webhook(Part):
    enabled: bool = True
    """Put the engine kit into new pods that have the label stanch.dev/inject: enabled."""
    port: Port = 9443
    tls_secret: NameOrNone = ""
    """Secret with tls.crt and tls.key, as cert-manager makes it. Empty: the operator makes its own in memory
    and writes the authority's certificate into the webhook's configuration."""
    certificate: NameOrNone = ""
    """cert-manager's Certificate behind tlsSecret, whose authority its injector shall write there."""


class TokenSecret(Part):
    name: NameOrNone = ""
    """A Secret that you have made."""
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$")] = "token"


class Alerts(Part):
    enabled: bool = False
    """Take Alertmanager's webhooks. Needs tokenSecret or tlsSecret."""
    port: Port = 9095
    token_secret: TokenSecret = TokenSecret()
    """The bearer token that Alertmanager sends, of at least 16 characters."""
    tls_secret: NameOrNone = ""
    """Secret with tls.crt and tls.key, and with ca.crt for mutual TLS."""
    table: Raw = {}
    """Which labels of an alert name namespace, pod and engine (docs/alerts.md). Empty: the operator's own."""


class Prometheus(Part):
    table: list[Raw] = []
    """The servers that LeakWatches may name, and no others: {url, bearerTokenFile, basicAuth: {username,
    passwordFile}, caFile, headers}. Files are those of the Secret below, as /etc/stanch/prometheus/KEY."""
    secret: NameOrNone = ""
    """A Secret that you have made."""


class ApiKeys(Part):
    secret: NameOrNone = ""
    """A Secret that you have made, for engines that run with --api-key: its keys are the engines' namespaces,
    or `default`; its values the API keys."""


class MetricsService(Part):
    enabled: bool = True
    annotations: Strings = {}


class ServiceMonitor(Part):
    enabled: bool = False
    """Needs the kinds of prometheus-operator."""
    interval: Annotated[str, Field(pattern=r"^([0-9]+(ms|s|m|h))?$")] = "15s"
    labels: Strings = {}
    """By which your Prometheus finds it."""


class PrometheusRule(Part):
    enabled: bool = False
    """Needs the kinds of prometheus-operator. The rules are in files/rules.yaml."""
    labels: Strings = {}
    """By which your Prometheus finds it."""


class Dashboard(Part):
    enabled: bool = False
    """A ConfigMap for the side-car of Grafana's chart."""
    labels: Strings = {"grafana_dashboard": "1"}
    annotations: Strings = {}


class Metrics(Part):
    port: Port = 8080
    """Of /metrics, /healthz and /readyz."""
    service: MetricsService = MetricsService()
    service_monitor: ServiceMonitor = ServiceMonitor()
    prometheus_rule: PrometheusRule = PrometheusRule()
    dashboard: Dashboard = Dashboard()


class NetworkPolicy(Part):
    enabled: bool = False
    """Close the operator's pods but for what follows. Ports that are not listed are closed: an engine on
    another port is then blind. The API server reaches the webhook from wherever it is."""
    metrics_from: list[Raw] = []
    """NetworkPolicy peers that may read metrics. Empty: everybody. The kubelet's probes always pass."""
    alerts_from: list[Raw] = []
    """NetworkPolicy peers that may send alerts. Empty: everybody, with the token."""
    engine_ports: Annotated[list[Port], Unique] = [8000]
    """All ports that LeakWatches name."""
    api_server_ports: Annotated[list[Port], Unique] = [443, 6443]
    prometheus_ports: Annotated[list[Port], Unique] = []
    """Of the servers of LeakWatches with source Prometheus."""


class DisruptionBudget(Part):
    enabled: bool = True
    """Of two replicas keep one. With one replica there is none: it would only block drains."""


class Uninstall(Part):
    lift: bool = True
    """Before the release is uninstalled, take every cordon off (`stanch lift`). Without it they run out 30 s
    after the operator has gone."""
    deadline_seconds: Annotated[int, Field(ge=30, le=600)] = 150
    """For so long an uninstall may wait for that."""


class Values(Part):
    """All of it."""

    image: Image = Image()
    """The operator's image; the engine kit is in it too."""
    image_pull_secrets: list[Reference] = []
    kit: Kit = Kit()
    fullname_override: NameOrNone = ""
    """Name of all objects. Empty: the release's name, with `stanch` in it."""
    replicas: Annotated[int, Field(ge=1, le=2)] = 1
    """Of two one is active, the other waits for its Lease."""
    watch_namespaces: Annotated[list[Label], Unique] = []
    """Empty: the whole cluster. Else LeakWatches of these namespaces only, and rights in them only; they must
    exist."""
    crds: Crds = Crds()
    service_account: ServiceAccount = ServiceAccount()
    rbac: Rbac = Rbac()
    disagg_deployments: DisaggDeployments = DisaggDeployments()
    admission_policy: AdmissionPolicy = AdmissionPolicy()
    webhook: Webhook = Webhook()
    alerts: Alerts = Alerts()
    prometheus: Prometheus = Prometheus()
    api_keys: ApiKeys = ApiKeys()
    metrics: Metrics = Metrics()
    network_policy: NetworkPolicy = NetworkPolicy()
    pod_disruption_budget: DisruptionBudget = DisruptionBudget()
    uninstall: Uninstall = Uninstall()
    resources: Raw = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}
    priority_class_name: NameOrNone = ""
    """An operator that is evicted first repairs last: a class above the engines' is worth having."""
    node_selector: Strings = {}
    tolerations: list[Raw] = []
    affinity: Raw = {}
    topology_spread_constraints: list[Raw] = []
    extra_env: list[Raw] = []
    """More variables of the operator, as a container has them."""
    labels: Strings = {}
    """On every object of the chart but the kinds."""
    annotations: Strings = {}
    """On the Deployment."""
    pod_labels: Strings = {}
    pod_annotations: Strings = {}
