"""What `stanch doctor` asks: the API server about itself and the operator, every engine about its kit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp
from pydantic import ValidationError

from stanch.api.convert import policy_of
from stanch.api.names import DISAGG_DEPLOYMENT, GROUP
from stanch.api.watch import LeakWatch
from stanch.edge import (
    client,
    diagnosis,
    diagnosis_access,
    diagnosis_deployments,
    diagnosis_others,
    engine,
    kit,
)
from stanch.edge.cluster import Cluster, ClusterError, Forbidden, NotFound, ObjectRef
from stanch.edge.cluster.making import DEPLOYMENTS
from stanch.edge.findings import Finding, Mark
from stanch.edge.kit_answers import Facts, KitError
from stanch.edge.live import Live
from stanch.edge.permissions import (
    DEPLOYING,
    INSTALL_KINDS,
    LEASE,
    NEEDED,
    UNWANTED,
    Guard,
    Permission,
    guards,
    lacking,
    policy_name,
)
from stanch.edge.prometheus_query import Wanted, wanted_of
from stanch.edge.survey import Surveyor
from stanch.edge.targets import Watched
from stanch.edge.units import Object
from stanch.edge.watching import watching

_AT_ONCE = 32
_ADMISSION, _BINDINGS = "admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings"


async def of_cluster(
    cluster: Cluster,
    own_namespace: str,
    service_account: tuple[str, str] | None,
    namespace: str | None,
    clock: Callable[[], float],
) -> list[Finding]:
    """Of everything that is there once. service_account: the operator's, None where it is who asks. Raises
    ClusterError where the API server does not answer."""
    found = [diagnosis.server(await cluster.version())]
    rights, allowed = await _permissions(cluster, own_namespace, service_account, namespace)
    found += [*rights, *await _policies(cluster, service_account, guards(allowed))]
    try:
        lease = await cluster.get(ObjectRef("coordination.k8s.io/v1", "Lease", LEASE, own_namespace), 0.0)
    except NotFound:
        found.append(diagnosis.operator(None, clock()))
    except ClusterError as error:
        found.append(Finding("cluster", "operator", Mark.UNKNOWN, str(error)))
    else:
        found.append(diagnosis.operator(lease, clock()))
    # Who may not list them is told nothing of it: that is a precaution.
    with suppress(ClusterError):
        every = await cluster.making.listed(DEPLOYMENTS, None, diagnosis_others.SELECTOR)
        found += diagnosis_others.others(every.items, own_namespace, namespace)
    found.append(diagnosis.stopped(await cluster.stop_reason()))
    return found


async def _permissions(
    cluster: Cluster, own_namespace: str, service_account: tuple[str, str] | None, namespace: str | None
) -> tuple[list[Finding], Mapping[Permission, bool] | None]:
    """And what it may; None where that cannot be asked."""

    async def may(one: Permission) -> bool:
        where = own_namespace if one.own else namespace
        return await cluster.allowed(
            one.verb, one.group, one.resource, where, one.name or None, service_account
        )

    try:
        asked = (*NEEDED, *DEPLOYING, *UNWANTED)
        allowed = dict(zip(asked, await asyncio.gather(*map(may, asked)), strict=True))
    except Forbidden as error:
        todo = "only who may create SubjectAccessReviews may ask about another account"
        return [Finding("cluster", "permission", Mark.UNKNOWN, str(error), todo)], None
    excess = [one for one in UNWANTED if allowed[one]]
    who = "this account" if service_account is None else "service account " + "/".join(service_account)
    return diagnosis_access.permissions(who, lacking(allowed), excess, namespace), allowed


async def _policies(
    cluster: Cluster, service_account: tuple[str, str] | None, wanted: Sequence[Guard]
) -> list[Finding]:
    """The operator itself may not read them, and need not: this is for who asks."""
    account = None if service_account is None else "system:serviceaccount:" + ":".join(service_account)

    async def get(kind: str, name: str) -> Object | None:
        try:
            return await cluster.get(ObjectRef(_ADMISSION, f"ValidatingAdmissionPolicy{kind}", name), 0.0)
        except NotFound:
            return None

    async def one(guard: Guard) -> Finding:
        name = policy_name(account, guard)
        try:
            found, binding = await asyncio.gather(get("", name), get("Binding", name))
        except Forbidden as error:
            todo = f"look as somebody who may: kubectl get validatingadmissionpolicies,{_BINDINGS} {name}"
            return Finding("cluster", "policy", Mark.UNKNOWN, str(error), todo)
        except ClusterError as error:
            return Finding("cluster", "policy", Mark.UNKNOWN, str(error))
        return diagnosis_access.policy(account, guard, found, binding)

    return [*await asyncio.gather(*map(one, wanted))]


async def watches_of(cluster: Cluster, namespace: str | None) -> tuple[list[LeakWatch], list[Finding]]:
    """The watches, and what is wrong with those that cannot be read or with there being none."""
    where = "all namespaces" if namespace is None else f"namespace {namespace}"
    try:
        listing = await cluster.watches(namespace)
        await cluster.incidents(namespace)
    except NotFound:
        said = f"the kinds of {GROUP} are not installed"
        return [], [Finding("cluster", "kinds", Mark.FAIL, said, INSTALL_KINDS)]
    except ClusterError as error:
        return [], [Finding("cluster", "kinds", Mark.UNKNOWN, str(error))]
    read, found = list[LeakWatch](), list[Finding]()
    for raw in listing.items:
        try:
            read.append(LeakWatch.model_validate(raw))
        except ValidationError as error:
            about = f"{raw['metadata']['namespace']}/{raw['metadata']['name']}"
            said = f"it cannot be read: {error.errors()[0]['msg']}"
            found.append(
                Finding(about, "watch", Mark.FAIL, said, "maybe a newer Stanch wrote it: update this one")
            )
    found.insert(0, diagnosis.watches(len(listing.items), where))
    return read, found


async def deployments_of(cluster: Cluster, namespace: str | None) -> list[Finding]:
    """Of the DisaggDeployments there."""
    try:
        listing = await cluster.deployments(namespace)
    except NotFound:
        said = f"the kind {DISAGG_DEPLOYMENT.kind} is not installed"
        return [Finding("cluster", "kinds", Mark.FAIL, said, INSTALL_KINDS)]
    except ClusterError as error:
        return [Finding("cluster", "deployment", Mark.UNKNOWN, str(error))]
    return [diagnosis_deployments.deployment(raw) for raw in listing.items]


async def of_watch(
    cluster: Cluster, watch: LeakWatch, key: kit.Key = kit.no_key, prometheus_table: Path | None = None
) -> list[Finding]:
    """Of one watch and of each pod that it selects. key: reads the engines' API key; raises FileError.
    prometheus_table: the admin's."""
    meta = watch.metadata
    found = [diagnosis.mode(watch)]
    wanted = wanted_of(watch, prometheus_table)
    async with (
        watching([], policy_of(watch), key, wanted=wanted, verify=False) as live,
        client.session(verify=False) as session,
    ):
        try:
            seen = await Surveyor(cluster, live, session, meta.namespace, meta.name).read()
        except ClusterError as error:
            return [*found, Finding(found[0].about, "pods", Mark.UNKNOWN, str(error))]
        await live.look()
        if wanted is not None:
            found += _by_prometheus(live, watch, wanted)
            # What is confirmed is asked of the engines themselves, so they must be reached too.
            await live.look_again(live.watched)
        asked = await _engines(live, session, meta.namespace)
    chosen, refused = seen.selection.chosen, seen.selection.refused
    roles = [one.role.value for one in chosen]
    found += diagnosis.selected(watch, roles, [(one.pod, one.why) for one in refused])
    unit_of = {pod.uid: (unit, pod.capability) for unit in seen.fleet.units for pod in unit.pods}
    for one in chosen:
        about = f"{meta.namespace}/{one.name}"
        mine = [line for line in asked if line.about == about or line.about.startswith(f"{about}/")]
        if one.ports:
            not_up = Finding(about, "metrics", Mark.UNKNOWN, "it has not been up yet, so it is not asked")
            found += mine or [not_up]
        unit, capability = unit_of[one.uid]
        if any(line.check == "kit" and line.mark is Mark.OK for line in mine):
            found.append(diagnosis.commands(about, one.raw, one.container))
        found += [diagnosis.cordon(about, capability), *diagnosis.repair(about, unit)]
    return found


def _by_prometheus(live: Live, watch: LeakWatch, wanted: Wanted) -> list[Finding]:
    """What came by way of the Prometheus just now."""
    blind = {}
    for name in live.watched:
        scrape = live.newest(name)
        why = (
            "nothing was read" if scrape is None else next((s.blind for s in scrape.samples if s.blind), None)
        )
        if why is not None:
            blind[name] = why
    return diagnosis.by_prometheus(watch, wanted.url, live.readings, len(live.watched), blind)


async def _engines(live: Live, session: aiohttp.ClientSession, namespace: str) -> list[Finding]:
    """Of every server: its page as it was just read, its version, its kit."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(one: Watched) -> list[Finding]:
        async with gate:
            return await _engine(live, session, one, f"{namespace}/{one.target.name}")

    return [line for lines in await asyncio.gather(*map(ask, live.watched.values())) for line in lines]


async def _engine(live: Live, session: aiohttp.ClientSession, one: Watched, about: str) -> list[Finding]:
    scrape = live.newest(one.target.name)
    problem = "it was not read" if scrape is None else scrape.problem
    blind = None if scrape is None else next((s.blind for s in scrape.samples if s.blind is not None), None)
    found = [diagnosis.metrics(about, one.target.shown, problem or blind)]
    if problem is not None:
        return found
    try:
        said: Facts | KitError = await kit.state(session, one.base)
    except KitError as error:
        said = error
    version, locked = await asyncio.gather(
        engine.version(session, one.base), _locked(session, one.base, said, live.key)
    )
    found += [diagnosis.engine_version(about, version), diagnosis.kit(about, said)]
    return [*found, *diagnosis_access.key(about, locked, given=live.key() is not None)]


async def _locked(session: aiohttp.ClientSession, base: str, said: Facts | KitError, key: kit.Key) -> bool:
    """Whether what the operator asks of it is refused with this key: the kit's list, else a request."""
    if isinstance(said, KitError):
        return await engine.locked(session, base, key())
    try:
        await kit.requests(session, base, key)
    except KitError as error:
        return error.locked
    return False
