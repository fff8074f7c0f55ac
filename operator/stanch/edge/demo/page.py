"""The simulated engine's /metrics: what the steps did, counted, and written as prometheus_client writes it.

Counters move as vLLM 0.29.0's do: prompt tokens with a request's first token, prefix queries when it leaves
the queue (parked ones too), tokens and iterations with each step that makes a token, the request histograms
when it is done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

from stanch.edge.demo.families import FAMILIES, Family, Labels
from stanch.edge.demo.scheduler import Request, Step

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def number(value: float) -> str:
    """A number as prometheus_client writes it: Go's form, with an exponent from a million on."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6 and "e" not in text:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0").rstrip(".")
        return f"{mantissa}e+{dot - 1:02d}"
    return text


class Page:
    """One rank's values of every family since the process started (`created`, Unix time)."""

    def __init__(self, model: str, created: float, cache_config: dict[str, str], rank: int = 0) -> None:
        self._created = created
        self._own: Labels = (("engine", str(rank)), ("model_name", model))
        self._values: dict[tuple[str, Labels], float] = {}
        self._observed: dict[str, tuple[list[int], float]] = {}
        self._families = {family.name: family for family in FAMILIES}
        self._config = tuple(cache_config.items())
        for family in FAMILIES:
            for series in family.series if family.kind != "histogram" else ():
                self._values[family.name, series] = 0.0
            if family.kind == "histogram":
                self._observed[family.name] = ([0] * (len(family.buckets) + 1), 0.0)
        del self._values["vllm:cache_config_info", ()]
        self._values["vllm:cache_config_info", self._config] = 1.0
        self.set("vllm:engine_sleep_state", 1, sleep_state="awake")

    def set(self, name: str, value: float, **labels: str) -> None:
        """A gauge, or a counter that something else counts. KeyError for a family that is not there."""
        self._values[self._families[name].name, tuple(labels.items())] = float(value)

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        key = (self._families[name].name, tuple(labels.items()))
        self._values[key] = self._values.get(key, 0.0) + value

    def observe(self, name: str, value: float) -> None:
        counts, total = self._observed[name]
        counts[bisect_left(self._families[name].buckets, value)] += 1
        self._observed[name] = (counts, total + value)

    def count(self, step: Step) -> None:
        """Take in what one step of the scheduler did."""
        gauges = step.gauges
        self.set("vllm:num_requests_running", gauges.running)
        self.set("vllm:num_requests_waiting", gauges.capacity + gauges.deferred)
        self.set("vllm:num_requests_waiting_by_reason", gauges.capacity, reason="capacity")
        self.set("vllm:num_requests_waiting_by_reason", gauges.deferred, reason="deferred")
        self.set("vllm:kv_cache_usage_perc", gauges.usage)
        self.add("vllm:num_preemptions_total", step.preempted)
        self.add("vllm:nixl_num_kv_expired_reqs_total", step.expired)
        for request in step.admitted:
            self.add("vllm:prefix_cache_queries_total", request.ask.prompt_tokens)
            self.add("vllm:external_prefix_cache_queries_total", request.ask.prompt_tokens)
            if request.ask.remote is not None:
                self.add("vllm:external_prefix_cache_hits_total", request.ask.prompt_tokens)
        computed = 0
        for request in step.first:
            external = request.ask.remote is not None
            prompt = request.ask.prompt_tokens
            computed += 0 if external else prompt
            source = "external_kv_transfer" if external else "local_compute"
            self.add("vllm:prompt_tokens_total", prompt)
            self.add("vllm:prompt_tokens_by_source_total", prompt, source=source)
            self.add("vllm:prompt_tokens_cached_total", prompt if external else 0)
            self.observe("vllm:time_to_first_token_seconds", step.now - request.arrived)
        if step.tokens:
            self.add("vllm:generation_tokens_total", step.tokens)
            self.observe("vllm:iteration_tokens_total", step.tokens + computed)
        for request in step.done:
            self._finish(request, step.now)

    def _finish(self, request: Request, now: float) -> None:
        ask, decode = request.ask, now - request.first_token
        self.add("vllm:request_success_total", finished_reason="length")
        self.observe("vllm:request_prompt_tokens", ask.prompt_tokens)
        self.observe("vllm:request_generation_tokens", request.tokens)
        self.observe("vllm:request_max_num_generation_tokens", ask.max_tokens)
        self.observe("vllm:request_params_n", 1)
        self.observe("vllm:request_params_max_tokens", ask.max_tokens)
        self.observe("vllm:e2e_request_latency_seconds", now - request.arrived)
        self.observe("vllm:request_queue_time_seconds", request.admitted - request.arrived)
        self.observe("vllm:request_inference_time_seconds", now - request.admitted)
        self.observe("vllm:request_prefill_time_seconds", request.first_token - request.admitted)
        self.observe("vllm:request_decode_time_seconds", decode)
        self.observe("vllm:request_prefill_kv_computed_tokens", 0 if ask.remote else ask.prompt_tokens)
        if request.tokens > 1:
            each = decode / (request.tokens - 1)
            self.observe("vllm:request_time_per_output_token_seconds", each)
            for _ in range(request.tokens - 1):
                self.observe("vllm:inter_token_latency_seconds", each)

    def samples(self, family: Family) -> Iterator[tuple[str, Labels, float]]:
        """Names, labels and values of this rank's series of a family."""
        own = () if family.bare else self._own
        if family.kind == "histogram":
            counts, total = self._observed[family.name]
            running = 0
            for bound, count in zip((*map(number, family.buckets), "+Inf"), counts, strict=True):
                running += count
                yield f"{family.name}_bucket", (*own, ("le", bound)), float(running)
            yield f"{family.name}_count", own, float(running)
            yield f"{family.name}_sum", own, total
            yield f"{family.name}_created", own, self._created
            return
        for (name, labels), value in self._values.items():
            if name == family.name:
                yield name, (*own, *labels), value
                # The process collector's counters have no time of creation.
                if family.kind == "counter" and not name.startswith(("process_", "python_")):
                    yield f"{name.removesuffix('_total')}_created", (*own, *labels), self._created


def text_of(pages: Sequence[Page], names: Collection[str] = ()) -> str:
    """The page of one server: of several ranks each has series of its own, the process's are the first's.

    With names only the samples of exactly these names, as `?name[]=` restricts it."""
    lines: list[str] = []
    for family in FAMILIES:
        of = pages[:1] if family.bare else pages
        samples = [sample for page in of for sample in page.samples(family)]
        created = [sample for sample in samples if sample[0].endswith("_created")]
        plain = [sample for sample in samples if not sample[0].endswith("_created")]
        for title, kind, group in (
            (family.name, family.kind, plain),
            (created[0][0] if created else "", "gauge", created),
        ):
            shown = [s for s in group if not names or s[0] in names]
            if not shown and (names or not title or not group):
                continue
            lines += (f"# HELP {title} {family.help}", f"# TYPE {title} {kind}")
            lines += (f"{name}{_braces(labels)} {number(value)}" for name, labels, value in shown)
    return "\n".join(lines) + "\n"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels)) + "}"
