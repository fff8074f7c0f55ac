"""What an action writes on its pods. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from stanch.api.names import ANNOTATION_INCIDENT
from stanch.core.plan_types import Action, Precondition, Verb
from stanch_connector import contract

Annotations = dict[str, str | None]

# The contract's words for the verbs that are commands.
_COMMANDS: Mapping[Verb, contract.Verb] = {
    Verb.RELEASE: "release",
    Verb.DRAIN: "drain",
    Verb.RESTART: "restart",
}
# The kit takes ten times as many, but all annotations of a pod together have 256 KiB.
_MOST_IDS = 1000
_UNDRAIN_SECONDS = 30.0
PATCHES = frozenset({Verb.CORDON, Verb.LIFT, *_COMMANDS})


def annotations_of(action: Action, pod: Precondition, *, draining: bool = False) -> Annotations:
    """What to set or (None) remove on this pod; nothing where it is not to be written to.

    draining: whether its kit drains. The lock is set by whatever is set first, and taken off last.
    """
    if action.verb is Verb.LIFT:
        return _lift(action, pod, draining)
    lock: Annotations = {ANNOTATION_INCIDENT: action.incident}
    if action.verb is Verb.CORDON:
        cordon: contract.Cordon = {
            "incident": action.incident,
            "beat": action.beat,
            "leaseSeconds": action.lease_seconds,
        }
        return {contract.ANNOTATION_CORDON: _text(cordon), **lock}
    if pod.boot_id is None or (action.verb is Verb.RESTART and pod is not action.pods[0]):
        return {}
    args: dict[str, object] = {"ids": list(action.ids[:_MOST_IDS])} if action.verb is Verb.RELEASE else {}
    command = _command(action.key, _COMMANDS[action.verb], pod.boot_id, action.deadline_seconds, args)
    return {contract.ANNOTATION_COMMAND: command, **lock}


def _lift(action: Action, pod: Precondition, draining: bool) -> Annotations:
    """The cordon goes at once. A drain ends by a command, and as long as it lasts the lock stays, so that
    whoever looks next takes off the rest."""
    if draining and pod.boot_id is not None:
        command = undrain(f"{action.key}-undrain", pod.boot_id)
        return {contract.ANNOTATION_CORDON: None, contract.ANNOTATION_COMMAND: command}
    return {
        contract.ANNOTATION_CORDON: None,
        contract.ANNOTATION_COMMAND: None,
        ANNOTATION_INCIDENT: None,
    }


def undrain(name: str, boot_id: str) -> str:
    """The command that ends a drain of this process."""
    return _command(name, "undrain", boot_id, _UNDRAIN_SECONDS, {})


def _command(
    name: str, verb: contract.Verb, boot_id: str, deadline_seconds: float, args: dict[str, object]
) -> str:
    command: contract.Command = {
        "id": name,
        "verb": verb,
        "bootId": boot_id,
        "args": args,
        "deadlineSeconds": deadline_seconds,
    }
    return _text(command)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
