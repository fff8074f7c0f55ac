"""Which pods a LeakWatch means: by labels or by workload, with their engine's container and ports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stanch.api.common import Operator, Selector
from stanch.api.presets import role_by_label
from stanch.api.watch import LeakWatch, WatchedRole
from stanch.api.watch_status import RoleName
from stanch.core.plan_limits import Mode
from stanch.core.sample import Role
from stanch.edge.units_args import Arguments, arguments_of
from stanch.edge.units_group import LWS_NAME, Group, group, parallel_group
from stanch.edge.units_owner import is_owned, ref_of
from stanch.edge.units_pod import containers, declares, is_finished
from stanch.edge.units_raw import Object, Objects, name_of, rows, table, text, texts, whole

# vllm serve's own default (vllm/entrypoints/openai/cli_args.py, 0.29.0).
_PORT = 8000
_BY_NAME = {
    "LeaderWorkerSet": LWS_NAME,
    "DisaggregatedSet": "disaggregatedset.x-k8s.io/name",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """One pod of the watch.

    container: the name of the engine's. ports: those at which its engines answer; empty for a member of a
    group that serves none (a headless worker). arguments: what the container's say. group: what it dies
    with, None where it stands alone. conflict: what else selects it, None where nothing does; a pod of two
    roles of this watch has the role UNKNOWN. role_open: nothing of the pod tells its role, the engine may.
    """

    raw: Object
    name: str
    uid: str
    role: Role
    container: str
    ports: tuple[int, ...]
    arguments: Arguments
    group: Group | None = None
    conflict: str | None = None
    role_open: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod that is selected and cannot be watched; why, as a sentence that says what to do."""

    pod: str
    why: str


@dataclass(frozen=True, slots=True)
class Selection:
    chosen: tuple[Chosen, ...] = ()
    refused: tuple[Refused, ...] = ()


def queries(watch: LeakWatch, objects: Objects) -> tuple[str, ...]:
    """Label selectors, at most one per role, as the API takes them, whose lists together hold every pod of
    the watch (and maybe others: `select` decides). "" where only the whole namespace does, as long as a
    workload's selector is not known."""
    found = {_query(role, objects) for role in watch.spec.watched}
    return ("",) if "" in found else tuple(sorted(found))


def _query(role: WatchedRole, objects: Objects) -> str:
    if role.selector is not None:
        labels: Mapping[str, object] = role.selector.match_labels
        return _selector(
            labels, [(r.key, r.operator.value, r.values) for r in role.selector.match_expressions]
        )
    if role.workload_ref is None:
        return ""
    if (key := _BY_NAME.get(role.workload_ref.kind)) is not None:
        return f"{key}={role.workload_ref.name}"
    selector = table(objects.get(ref_of(role.workload_ref)), "spec", "selector")
    expressions = [
        (text(one, "key"), text(one, "operator"), texts(one, "values"))
        for one in rows(selector, "matchExpressions")
    ]
    return _selector(table(selector, "matchLabels"), expressions)


def _selector(labels: Mapping[str, object], expressions: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    parts = [f"{key}={value}" for key, value in sorted(labels.items())]
    for key, operator, values in expressions:
        if operator == Operator.EXISTS.value:
            parts.append(key)
        elif operator == Operator.DOES_NOT_EXIST.value:
            parts.append(f"!{key}")
        else:
            word = "in" if operator == Operator.IN.value else "notin"
            parts.append(f"{key} {word} ({','.join(values)})")
    return ",".join(parts)


def select(
    watch: LeakWatch, pods: Iterable[Object], objects: Objects, others: Sequence[LeakWatch] = ()
) -> Selection:
    """The pods of the watch among these, in the order of their names; a pod that comes twice counts once.

    others: all watches of the namespace, this one may be among them; of those that are not Disabled it is
    noted which select the same pod. Pods whose phase is Succeeded or Failed are no engines any more, and are
    left out without a word.
    """
    chosen: dict[str, Chosen] = {}
    refused: dict[str, Refused] = {}
    rivals = [other for other in others if _is_rival(other, watch)]
    for pod in pods:
        name, uid = name_of(pod), text(pod, "metadata", "uid")
        roles = [role for role in watch.spec.watched if _means(watch, role, pod, objects)]
        if not roles or is_finished(pod):
            continue
        if not name or not uid:
            refused.setdefault(name, Refused(name or "?", "it has no name or no uid: it is no pod of an API"))
            continue
        one = _choose(pod, name, uid, roles)
        if isinstance(one, Refused):
            refused.setdefault(uid, one)
            continue
        also = sorted(f"LeakWatch {r.metadata.name}" for r in rivals if selects(r, pod, objects))
        conflict = " and ".join([*([one.conflict] if one.conflict else []), *also])
        chosen.setdefault(uid, replace(one, conflict=conflict or None))
    kept, lost = _served(chosen.values())
    return Selection(
        tuple(sorted(kept, key=lambda one: (one.name, one.uid))),
        tuple(sorted([*refused.values(), *lost], key=lambda one: one.pod)),
    )


def _is_rival(other: LeakWatch, watch: LeakWatch) -> bool:
    mine, its = watch.metadata, other.metadata
    return its.namespace == mine.namespace and its.name != mine.name and other.spec.mode is not Mode.DISABLED


def selects(watch: LeakWatch, pod: Object, objects: Objects) -> bool:
    """Whether the watch means the pod, as far as its owners are known."""
    return any(_means(watch, role, pod, objects) for role in watch.spec.watched)


def _means(watch: LeakWatch, role: WatchedRole, pod: Object, objects: Objects) -> bool:
    if text(pod, "metadata", "namespace") not in ("", watch.metadata.namespace):
        return False
    if role.selector is not None:
        return _matches(role.selector, table(pod, "metadata", "labels"))
    return role.workload_ref is not None and is_owned(pod, role.workload_ref, objects)


def _matches(selector: Selector, labels: Object) -> bool:
    """As apimachinery has it (pkg/labels/selector.go): NotIn also holds where the label is absent."""
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    for one in selector.match_expressions:
        has, value = one.key in labels, labels.get(one.key)
        holds = {
            Operator.IN: has and value in one.values,
            Operator.NOT_IN: not has or value not in one.values,
            Operator.EXISTS: has,
            Operator.DOES_NOT_EXIST: not has,
        }[one.operator]
        if not holds:
            return False
    return bool(selector.match_labels or selector.match_expressions)


def _choose(pod: Object, name: str, uid: str, roles: Sequence[WatchedRole]) -> Chosen | Refused:
    container = _container(pod, roles[0])
    if isinstance(container, str):
        return Refused(name, container)
    arguments = arguments_of(container)
    ports = tuple(roles[0].ports or (arguments.port or _PORT,))
    found = group(pod) or parallel_group(pod, arguments, len(ports))
    leads = found is None or found.lead
    if arguments.headless or not (leads or any(declares(container, port) for port in ports)):
        # Others than the leader may serve too, as data-parallel ranks do; then their manifest says so.
        ports = ()
    role, conflict = _role(roles[0], pod, arguments), None
    if len(roles) > 1:
        conflict = " and ".join(f"role {one.name.value} of the same watch" for one in roles[1:])
        role = Role.UNKNOWN
    open_ = role is Role.UNKNOWN and conflict is None
    return Chosen(pod, name, uid, role, text(container, "name"), ports, arguments, found, conflict, open_)


def _role(role: WatchedRole, pod: Object, arguments: Arguments) -> Role:
    """Of a role `auto`: what the pod's labels say, else its arguments; UNKNOWN where neither does."""
    if role.name is not RoleName.AUTO:
        return Role(role.name.value)
    said = role_by_label(table(pod, "metadata", "labels"))
    return (arguments.role or Role.UNKNOWN) if said is None else Role(said)


def _container(pod: Object, role: WatchedRole) -> Object | str:
    """The engine's container, or why it cannot be told."""
    every = [one for one in containers(pod) if text(one, "name")]
    names = ", ".join(text(one, "name") for one in every) or "none"
    if role.container_name is not None:
        named = [one for one in every if text(one, "name") == role.container_name]
        return named[0] if named else f"it has no container {role.container_name} (it has {names})"
    if len(every) == 1:
        return every[0]
    speaking = [one for one in every if arguments_of(one).vllm]
    if len(speaking) == 1:
        return speaking[0]
    listening = [
        one
        for one in speaking or every
        # Without ports of the watch's own this says nothing: a side-car takes the engine's usual one.
        if any(whole(port, "containerPort") in (role.ports or ()) for port in rows(one, "ports"))
    ]
    if len(listening) == 1:
        return listening[0]
    return (
        f"it has several containers ({names}), and nothing tells which one runs the engine: name it in "
        f"containerName of role {role.name.value}"
    )


def _served(chosen: Iterable[Chosen]) -> tuple[list[Chosen], list[Refused]]:
    """Without the groups of which no member that is selected serves anything."""
    every = list(chosen)
    served = {_group_name(one) for one in every if one.ports}
    kept = [one for one in every if _group_name(one) in served]
    lost = [
        Refused(
            one.name,
            "it has no engine's port and the pod that leads its group is not selected: select that too",
        )
        for one in every
        if _group_name(one) not in served
    ]
    return kept, lost


def _group_name(one: Chosen) -> str:
    return one.name if one.group is None else one.group.name
