"""A seeded simulator of engine-days of mixed traffic, as readings; and the truth of what it planted.

It knows the design's words and stanch.core.sample, and shares no code with the detector. Only referee.py
knows both: it lets the detector judge the readings and counts where the two disagree.

Time. One deployment lives one day (86,400 s, from midnight of its users). Event-driven: requests arrive,
wait, prefill, move, decode and end at their own times; an engine is looked at every 5 s (every fourth
deployment: 10 s), at a phase of its own with a jitter of 0.1 s (one page in 500 is late by up to 0.9
interval).

Load (load.py). Poisson arrivals at a rate that changes every minute: a day curve (cosine, peak at 15 h, a
night of 0-30 % of the peak), bursts (on average one in 90 min: 3-8 times the rate for 1-8 min), batches (one
in 3 h: 10-40 requests within a second), lulls (a profile's own; no arrival for 2-25 min). Prompts:
log-normal, median 900 tokens (2,500 in three profiles), sigma 1, 16..30,000; one in 150 is long:
40,000-140,000, at most 70 % of the cache. Outputs: log-normal, median 180-450 tokens, sigma 0.8, 1..4,000.
Clients: 4 % leave early, after an exponential time (mean 12 s), wherever their request then is; 30 % leave
during a transfer of more than 10 s; one that cannot be admitted at once leaves after 60-300 s.

Engines (engine.py, deployment.py). A decode writes 25 tokens/s for each running request, one iteration a
token; it holds blocks of 16 tokens for prompt and output, and at most 64 requests. Speed does not depend on
the batch. A prefill is one server in order of arrival, 8,000 tokens/s (4,000 in one profile, so that a long
prompt is 35 s of one running request, rising usage and no counter that moves) in chunks of 8,192 tokens; then
it leases the blocks until the decode has pulled them: 30 s, renewed every 5 s while the request is in the
queue of a decode that steps, 480 s at most (fixed 480 s in the profile of old engines); 1 % are never
fetched. A "both" engine prefills and decodes the same request. A head of the queue that does not fit waits
for capacity; a decode that runs out of blocks preempts its youngest. Transfers (deferred): log-normal, median
0.25 s, sigma 1.1, 0.05..30 s; 3 in 1,000 slow, 20-58 s; on one day of three a slow network for 10-30 min,
every transfer 2-58 s and 2 % of them failing; from a prefill that is up for less than a minute 1.5-25 s. 2 %
wait 0.5-8 s for a LoRA slot or a grammar (deferred, no blocks). Blocks of a request whose client leaves
during its transfer stay held until the transfer ends. Bidirectional decodes (one profile) pin 30 % of
finished turns for 480 s, up to 40 % of the cache. Data-parallel ranks (one profile) share a process.

Gauges are set by a step. An engine whose last request is aborted, or that frees blocks while idle, shows its
last page for 3-6 s, or until it steps. Stalls: three a day and engine of 2-25 s, in which nothing moves, with
the last page served.

Trouble (trouble.py). Restarts: one engine in three restarts once a day (all its ranks at once): 45-90 s
blind, counters from zero, a new process start and container; transfers from a dead prefill fail and count.
Single pages fail (1 in 2,000, now and then one with a value that is no number); each engine has a gap of 1-10
min of failed pages on one day of two; the watcher itself is away for 10-600 s on one day of three. Sleep: a
decode of the night profile sleeps from 1 h to 5 h and goes on showing a stale usage. Pause: a "both" engine
is paused for 2-12 min with requests running, once a day. Versions: no by_reason and no iterations in the
profile of old engines, no process start in one, no container id in two.

Planted (plants.py): on about one engine in four, from 1 h to 20 h, ended by a restart 1-6 h later (half of
them) or by the day:
  parked   1-3 requests of 1-20 % of the cache each, parked for ever; their clients leave after 30-300 s.
  growing  one, then another one of 1-6 % every 5-40 min, up to 90 %.
  waiting  as parked, with clients that wait for 15-90 min.
  deadlock nothing is admitted any more.
  frozen   the worker hangs while a request runs (on any role): the last page is served for ever.
  stranded a prefill never gives 6-50 % of its cache back.

Left out: gauges that stay stale for minutes and engines that free only at their next request (the canary's
job, tested with sequences), sleeping streaming sessions, engines that hang from idle, tensor-parallel
stragglers, clock jumps, several models in one process, speculative decoding, prefix-cache hits (they only
lower load), pins that fill the cache, leaks in peers of the same process, batch-dependent speed. The detector
does not act: a leak lives on after it was found.
"""
