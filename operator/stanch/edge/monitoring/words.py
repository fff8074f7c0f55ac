"""What the alerts say to a person: a summary, and what it means and what to do. Templates of Prometheus.

No numbers of the policy are in here: the holds stand beside the expressions. docs/monitoring.md says more.
"""

from __future__ import annotations

from dataclasses import dataclass

# The pod where there is one, else the address; and the rank.
_WHO = "{{ or $labels.pod $labels.instance }} (engine {{ or $labels.engine `?` }})"
_SHARE = "{{ $value | humanizePercentage }}"
_WATCH = "{{ $labels.namespace }}/{{ $labels.watch }}"


@dataclass(frozen=True, slots=True)
class Words:
    summary: str
    description: str


ENGINES: dict[str, Words] = {
    "StanchHeldIdle": Words(
        f"{_WHO} holds {_SHARE} of its KV cache for nobody",
        "This decode engine holds KV cache with nothing running, nothing waiting and no token. Requests "
        "that are in no queue any more hold it, and only a release or a restart gives it back. With the "
        "engine kit: stanch requests --stuck, then stanch release; else drain the pod and restart it.",
    ),
    "StanchHeldFloor": Words(
        f"{_WHO} has held {_SHARE} of its KV cache through every idle moment",
        "This decode engine serves, yet it has not been idle with less of its KV cache held for a long "
        "time. What never comes back belongs to requests that nobody runs. With the engine kit: stanch "
        "requests --stuck; else drain the pod and restart it.",
    ),
    "StanchDeferredStall": Words(
        f"{_WHO} runs nothing, and all that waits is put off",
        "Every request of this decode engine waits for something outside its queue, most likely for KV "
        "that does not come, and nothing else moves. Look at the prefill engines that it reads from and "
        "at StanchTransferFault; where a grammar, a LoRA slot or a streaming session is waited for it "
        "is no leak. Such requests end only by a release, a restart, or when their clients go.",
    ),
    "StanchQueueDeadlock": Words(
        f"{_WHO} runs nothing although requests wait",
        "Requests wait that could be admitted, nothing runs, and no token comes. Either "
        f"requests that nobody runs hold the KV cache (it is used to {_SHARE}), or the first in "
        "the queue needs more than the engine has. Restart the engine; if it comes back, look "
        "for a request that is too large for it.",
    ),
    "StanchNoProgress": Words(
        f"{_WHO} makes no step although requests run",
        "Requests run, yet neither tokens nor steps nor the use of the KV cache move. /health says 200 "
        "all the same. The engine's core or a worker hangs: take its stack (py-spy dump) if you can, "
        "then restart it.",
    ),
    "StanchProducerStranded": Words(
        f"{_WHO} has kept {_SHARE} of its KV cache beyond its lease",
        "This prefill engine holds KV cache for longer than twice the longest lease, with nothing "
        "running, nothing waiting, and no decode engine of its namespace waiting. An idle vLLM before "
        "0.22 lets go only at its next request: send it one. If that changes nothing, restart it.",
    ),
    "StanchRoleUnknown": Words(
        f"{_WHO} holds {_SHARE} of its KV cache for nobody, and its role is not known",
        "On a decode engine this is a leak, on a prefill engine it may be meant. Neither a label `role` "
        "of the target nor its counters tell which it is: give its targets the label role=decode or "
        "role=prefill.",
    ),
    "StanchCollapse": Words(
        f"{_WHO} makes almost no tokens while its queue grows",
        "This engine makes a small share of the tokens of the hour before, no request finishes, and "
        "more and more wait. Compare it with its peers, and look at what it waits for: KV transfers, or "
        "a KV cache that is held.",
    ),
    "StanchCreep": Words(
        f"{_WHO} holds more KV cache from hour to hour while it is idle",
        "The least of the KV cache that this engine has held while idle rises from hour to "
        f"hour, by {_SHARE} in all. Something leaks slowly: look at the stuck requests (engine "
        "kit), and plan a restart before it is full.",
    ),
    "StanchTransferFault": Words(
        f"KV transfers of {_WHO} have failed",
        "Transfers or notifications between prefill and decode engines fail: a peer went away, or the "
        "network between them. Leaks on the decode engines are likelier now. With several cache groups "
        "answers may be wrong.",
    ),
    "StanchBlind": Words(
        f"{_WHO} answers Prometheus, yet nothing can be said of it",
        "Its target is up, but usage, running, waiting or the token counters are missing or no numbers, "
        "so no alert about it can fire. Look at its /metrics: --disable-log-stats takes them away, a "
        "relabelling or a sample limit drops them, and from Ray they come only with the first token.",
    ),
    "StanchScrapedTooRarely": Words(
        f"{_WHO} is not scraped often enough to be judged",
        "For part of the time there is no fresh reading of it, so its holds start anew again and again "
        "and no alert about it can fire. Scrape it once a minute or more often.",
    ),
    "StanchParkedRemoteKV": Words(
        f"Requests of {_WHO} have been stuck for {{{{ $value | humanizeDuration }}}}",
        "The engine kit lists requests that wait for KV from another engine, or that hold KV cache "
        "although they have ended, for longer than any honest transfer. See them with stanch requests "
        "--stuck; stanch release frees those whose KV nothing can write into any more.",
    ),
    "StanchKitSilent": Words(
        f"The engine kit in {_WHO} gives no list",
        "An engine core has not answered its own server for minutes, or the kit has turned itself off "
        "there (`disabled` in /stanch/v1/state says why). Without its list only a canary can confirm a "
        "fault.",
    ),
    "StanchKitErrors": Words(
        "The engine kit in {{ or $labels.pod $labels.instance }} has caught errors of its own",
        "They never reach the engine, but what the kit lists may be incomplete, and after 20 in a row "
        "it turns itself off. The engine's log names the hook once a minute: please report it with that "
        "line.",
    ),
    "StanchUnpatched": Words(
        f"{_WHO} has the known defect, and nothing fixes it",
        "Its vLLM loses requests whose KV is all in the local cache, and the fixed connector is not "
        "loaded. Upgrade to vLLM 0.30.0 or later, or load the connector (connectorPatch: Auto).",
    ),
}

ITSELF: dict[str, Words] = {
    "StanchNoActiveOperator": Words(
        "{{ $value }} operators repair; it should be one",
        "With 0 nothing is watched or repaired, though engines serve on and cordons end by themselves: "
        "look at the operator's pods and at their Lease. Two at once cannot exceed a budget together, "
        "but something is wrong with a clock or with the Lease: restart one. That the operator has gone "
        "is said for a day.",
    ),
    "StanchLoopStalled": Words(
        "The operator's part {{ $labels.part }} has given no sign of life for {{ $value | "
        "humanizeDuration }}",
        "That part of {{ or $labels.pod $labels.instance }} stands still. /readyz names it, and after "
        "three times its limit the kubelet restarts the pod, unless it is the API server that does not "
        "answer: then look there.",
    ),
    "StanchTurnsFailing": Words(
        f"Turns of {_WATCH} keep failing ({{{{ $labels.reason }}}})",
        "Nothing is judged or repaired in a turn that fails. The operator's log says why (event "
        "turn-failed): most often the API server is away, or a right is missing (stanch doctor).",
    ),
    "StanchFleetBlind": Words(
        f"{_WATCH} cannot see {{{{ $value }}}} of its engines, more than half",
        "A fleet of which more than half is blind is not repaired at all. kubectl describe lw says why: "
        "engines that are down, a NetworkPolicy between the operator and them, or pages without vLLM's "
        "families.",
    ),
    "StanchBreakerOpen": Words(
        f"The breaker of {_WATCH} is open: none of its engines is repaired any more",
        "Repairs have failed, or the same leak came back. Read the incidents (kubectl get li), find the "
        "cause, and set the annotation stanch.dev/reset-breaker on the watch to a new value.",
    ),
    "StanchBudgetStarved": Words(
        f"{{{{ $value }}}} units of {_WATCH} wait for their repair ({{{{ $labels.reason }}}})",
        "They have waited for long. Either other pods of the role stay unavailable, or a disruption "
        "budget forbids the eviction, or the watch's maxPerHour is used up. The incident names what is "
        "in the way.",
    ),
    "StanchApprovalNeeded": Words(
        f"{{{{ $value }}}} repairs of {_WATCH} wait for a person",
        "The watch says approval: Manual. Look at the incident (kubectl get li), and set the annotation "
        "stanch.dev/approve on it if it may go on.",
    ),
    "StanchConflict": Words(
        f"{{{{ $value }}}} units of {_WATCH} are selected by another watch too",
        "A pod that two watches select is repaired by neither. Narrow one of the selectors; both "
        "watches have the condition Conflict, which names the other.",
    ),
    "StanchIncidentFailed": Words(
        f"An incident of {_WATCH} ended as {{{{ $labels.ending }}}}",
        "A person has to look: Escalated means that nothing more is tried on that engine, Failed that "
        "it was restarted and is not well. kubectl get li shows it, with the reason and the stuck "
        "requests.",
    ),
    "StanchAlertsTruncated": Words(
        "Alertmanager leaves out alerts that it sends to Stanch",
        "A notification had more alerts than its max_alerts, and those beyond were never sent. Raise "
        "max_alerts, or group the alerts finer (group_by: namespace, alertname).",
    ),
    "StanchAlertsNotTaken": Words(
        "Alerts that were sent to Stanch made no incident ({{ $labels.result }})",
        "unmapped: their labels name no pod; see docs/alerts.md for the table, and route only alerts "
        "about engines there. failed: the API server did not take the incident; the operator's log says "
        "why (alert-failed).",
    ),
    "StanchLogLinesLost": Words(
        "The operator's log loses lines",
        "{{ or $labels.pod $labels.instance }} could not write them: its standard output is not read "
        "fast enough. Incidents are whole in their objects; only the log is not.",
    ),
}

WORDS = ENGINES | ITSELF
