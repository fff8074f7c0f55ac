"""From facts to findings: what is well, what is not, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stanch.api.watch import LeakWatch
from stanch.core.fleet import Capability, Unit, Way
from stanch.core.plan_conditions import Readings
from stanch.core.plan_limits import Mode
from stanch.core.report import age_text
from stanch.edge.advice import advise
from stanch.edge.findings import Finding, Mark
from stanch.edge.kit_answers import Facts, KitError
from stanch.edge.permissions import LIFT
from stanch.edge.text import printable
from stanch.edge.units import Object
from stanch.edge.units_pod import container_named
from stanch.edge.units_raw import dig, rows, text, unix, whole
from stanch_connector.contract import ROUTE_READY

# What the kinds and the admission policy rest on is there from this version on (docs/bed.md).
OLDEST_SERVER = (1, 30)


def server(version: str) -> Finding:
    """version: as the API server says it, such as v1.35.4 or v1.33.5-gke.1080000."""
    head = version.removeprefix("v").split(".")
    try:
        known = (int(head[0]), int(head[1].rstrip("+")))
    except (ValueError, IndexError):
        return Finding(
            "cluster", "version", Mark.UNKNOWN, f"the API server says version {printable(version)}"
        )
    if known < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        return Finding(
            "cluster",
            "version",
            Mark.FAIL,
            f"the API server is {version}",
            f"upgrade it to {oldest} or later",
        )
    return Finding("cluster", "version", Mark.OK, f"the API server is {version}")


def watches(count: int, where: str) -> Finding:
    if count:
        said = f"{count} LeakWatch{'' if count == 1 else 'es'} in {where}"
        return Finding("cluster", "kinds", Mark.OK, said)
    return Finding(
        "cluster", "kinds", Mark.WARN, f"no LeakWatch in {where}", "make one: docs/examples, or name -n or -A"
    )


def stopped(why: str | None) -> Finding:
    if why is None:
        return Finding("cluster", "stop", Mark.OK, "action is not stopped")
    return Finding("cluster", "stop", Mark.WARN, why, "delete ConfigMap stanch-stop when action may go on")


def operator(lease: Object | None, now: float) -> Finding:
    """lease: by which the operators elect the active one, None where there is none."""
    start = "start it, or look at its pods: nothing is watched meanwhile"
    holder, seconds = text(lease, "spec", "holderIdentity"), whole(lease, "spec", "leaseDurationSeconds")
    renewed = unix(dig(lease, "spec", "renewTime"))
    if not holder or renewed is None:
        return Finding("cluster", "operator", Mark.FAIL, "no operator is active", start)
    age = max(0.0, now - renewed)
    if age > (seconds or 0):
        said = f"no operator is active: {holder} was the last one, {age_text(age)} ago"
        return Finding("cluster", "operator", Mark.FAIL, said, start)
    if holder.startswith(LIFT):
        said = (
            f"no operator is active: `stanch lift` keeps the Lease for {age_text((seconds or 0) - age)} more"
        )
        return Finding(
            "cluster", "operator", Mark.WARN, said, "wait: an uninstallation does that for a minute"
        )
    return Finding("cluster", "operator", Mark.OK, f"{holder} is active")


def mode(watch: LeakWatch) -> Finding:
    about, may = about_watch(watch), watch.spec.remediation
    if watch.spec.mode is Mode.DISABLED:
        return Finding(about, "mode", Mark.WARN, "Disabled: its engines are not watched", "set spec.mode")
    if watch.spec.mode is Mode.OBSERVE:
        return Finding(about, "mode", Mark.OK, "Observe: says what it would do, and does nothing")
    if may.paused:
        return Finding(
            about, "mode", Mark.WARN, "Enforce, but paused", "set spec.remediation.paused to false"
        )
    steps = ", ".join(step.value for step in may.steps) or "none"
    return Finding(about, "mode", Mark.OK, f"Enforce: may {steps}; approval {may.approval.value}")


def selected(watch: LeakWatch, roles: Sequence[str], refused: Iterable[tuple[str, str]]) -> list[Finding]:
    """roles: of each pod that is watched. refused: pods that are selected and cannot be watched, and why."""
    about, counts = about_watch(watch), {role: roles.count(role) for role in sorted(set(roles))}
    if counts:
        said = ", ".join(f"{count} {role}" for role, count in counts.items())
        found = [Finding(about, "pods", Mark.OK, f"selects {said}")]
    else:
        found = [
            Finding(
                about, "pods", Mark.FAIL, "selects no pod with an engine", "compare spec.roles with the pods"
            )
        ]
    namespace = watch.metadata.namespace
    return [*found, *(Finding(f"{namespace}/{pod}", "pods", Mark.FAIL, why) for pod, why in refused)]


def by_prometheus(
    watch: LeakWatch, url: str, readings: Readings | None, engines: int, blind: Mapping[str, str]
) -> list[Finding]:
    """engines: targets that were asked about. blind: why one of them could not be read, by its name."""
    about, namespace = about_watch(watch), watch.metadata.namespace
    trouble = None if readings is None else readings.trouble
    if trouble is not None:
        todo = "it is asked from where you are: look from where the operator runs too; docs/prometheus.md"
        return [Finding(about, "prometheus", Mark.FAIL, f"{trouble.reason}: {trouble.message}", todo)]
    notice = None if readings is None else readings.notice
    read = f"{url} has readings of {engines - len(blind)} of {engines} engines"
    found = [Finding(about, "prometheus", Mark.FAIL if blind else Mark.OK, read)]
    if notice is not None:
        found.append(Finding(about, "prometheus", Mark.WARN, f"{notice.reason}: {notice.message}"))
    return [
        *found,
        *(Finding(f"{namespace}/{one}", "prometheus", Mark.FAIL, why) for one, why in blind.items()),
    ]


def engine_version(pod: str, version: str | None) -> Finding:
    advice = advise(version)
    mark = {"affected": Mark.WARN, "fixed": Mark.OK}.get(advice.status, Mark.UNKNOWN)
    if mark is Mark.OK:
        return Finding(pod, "vLLM", mark, advice.text)
    said, _, todo = advice.text.partition(": ")
    return Finding(pod, "vLLM", mark, said, todo)


def metrics(pod: str, url: str, problem: str | None) -> Finding:
    """problem: why its page could not be used from here, None where it could."""
    if problem is None:
        return Finding(pod, "metrics", Mark.OK, f"{url} is read")
    return Finding(
        pod,
        "metrics",
        Mark.FAIL,
        f"{url} cannot be read from here: {problem}",
        "look from where the operator runs: a network policy may be in between, or the port be another one "
        "(spec.roles[].ports)",
    )


def kit(pod: str, said: Facts | KitError) -> Finding:
    load = "load it: docs/engine-kit.md"
    if isinstance(said, KitError):
        if said.absent:
            without = (
                "it has no engine kit: only a canary confirms, nothing is released, only eviction repairs"
            )
            return Finding(pod, "kit", Mark.WARN, without, load)
        return Finding(pod, "kit", Mark.UNKNOWN, str(said), "see the log of its API server")
    words = f"kit {said.kit or 'of an unknown version'}, connector {said.connector or 'none'}"
    if said.disabled is not None:
        return Finding(
            pod,
            "kit",
            Mark.FAIL,
            f"{words}; it turned itself off: {said.disabled}",
            "see the log of the engine",
        )
    return Finding(pod, "kit", Mark.OK, words)


def commands(pod: str, raw: Object, container: str) -> Finding:
    """Whether a downward-API volume shows the engine its pod's annotations, by which it is commanded."""
    shown = [text(volume, "name") for volume in rows(raw, "spec", "volumes") if _shows_annotations(volume)]
    mounts = [
        mount
        for mount in rows(container_named(raw, container), "volumeMounts")
        if text(mount, "name") in shown
    ]
    if any(not text(mount, "subPath") for mount in mounts):
        return Finding(pod, "commands", Mark.OK, f"volume {', '.join(shown)} shows it its annotations")
    why = "no volume shows it its annotations"
    if shown:
        # The kubelet never updates what is mounted by subPath.
        why = f"volume {', '.join(shown)} is not mounted as a whole in container {container}"
    return Finding(
        pod,
        "commands",
        Mark.FAIL,
        f"{why}, so no command and no cordon reaches it",
        "mount a downwardAPI volume with metadata.annotations at /etc/stanch/podinfo (docs/engine-kit.md)",
    )


def _shows_annotations(volume: Object) -> bool:
    items = [*rows(volume, "downwardAPI", "items")]
    for source in rows(volume, "projected", "sources"):
        items += rows(source, "downwardAPI", "items")
    return any(text(item, "fieldRef", "fieldPath") == "metadata.annotations" for item in items)


def cordon(pod: str, capability: Capability) -> Finding:
    if capability is Capability.READINESS:
        return Finding(pod, "cordon", Mark.OK, f"by readiness: its probe asks {ROUTE_READY}")
    return Finding(
        pod,
        "cordon",
        Mark.WARN,
        "none: it can be taken out of its Services only by being evicted",
        f"let its readinessProbe ask {ROUTE_READY} on the engine's port",
    )


def repair(pod: str, unit: Unit) -> list[Finding]:
    """How its process would be ended, and whether two watches want it."""
    how, why = (
        {
            Way.IN_PLACE: "its container is restarted in place",
            Way.GROUP: "a restart replaces its whole group",
            Way.EVICT: "it is evicted",
        }[unit.way],
        f", because {unit.way_why}" if unit.way_why else "",
    )
    if unit.way is not Way.EVICT and not unit.can_cordon:
        how, why = "it is evicted", ", because it cannot be cordoned"
    found = [Finding(pod, "repair", Mark.OK, f"{how}{why}")]
    if how == "it is evicted" and unit.not_remade:
        text_ = f"none but a release: it would have to be evicted{why}"
        found = [Finding(pod, "repair", Mark.WARN, text_, unit.not_remade)]
    if unit.conflict is not None:
        text_ = f"{unit.conflict} selects it too, so neither repairs it"
        found.append(Finding(pod, "conflict", Mark.FAIL, text_, "change one of both selectors"))
    return found


def about_watch(watch: LeakWatch) -> str:
    return f"{watch.metadata.namespace}/{watch.metadata.name}"
