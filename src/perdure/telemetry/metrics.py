"""All that is counted and measured: one place, from which the documentation's table is checked.

Each process counts what it did itself: what it committed, claimed, answered. Sums over processes are the whole.
"""

from __future__ import annotations

from typing import Final

from perdure.telemetry.instruments import Counter, Gauge, Histogram, Instrument

_SHORT: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LONG: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
_SIZES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

# --- sessions and turns

SESSIONS_CREATED: Final = Counter("perdure_sessions_created_total", "Sessions that were created", "agent")
SESSIONS_ENDED: Final = Counter("perdure_sessions_ended_total", "Sessions that were closed or cancelled", "outcome")
SESSIONS_AWAKE: Final = Gauge("perdure_sessions_awake", "Sessions that this process drives now")
HOLDS_PLACED: Final = Counter("perdure_holds_placed_total", "Holds that were placed on sessions", "reason")
TURNS_ADMITTED: Final = Counter("perdure_turns_admitted_total", "Inputs that were accepted", "agent")
TURNS: Final = Counter("perdure_turns_total", "Turns that have ended", "agent", "outcome")
TURN_SECONDS: Final = Histogram(
    "perdure_turn_seconds", "From a turn's start to its end", "agent", "outcome", bounds=_LONG
)
QUEUE_SECONDS: Final = Histogram(
    "perdure_turn_queue_seconds", "From an input's acceptance to its turn's start", "agent", bounds=_LONG
)

STEPS: Final = Counter("perdure_steps_total", "Steps of resumable turns that have ended", "agent", "outcome")
STEP_SECONDS: Final = Histogram(
    "perdure_step_seconds", "From a step's newest beginning to its end", "agent", "outcome", bounds=_LONG
)

# --- runs and ownership

RUNS_STARTED: Final = Counter("perdure_runs_started_total", "Runs that began", "host", "recovery")
RUNS_ENDED: Final = Counter("perdure_runs_ended_total", "Runs that ended", "host", "reason")
RUNS_ADOPTED: Final = Counter("perdure_runs_adopted_total", "Processes that were taken over from another worker")
PROCESS_STARTS: Final = Counter("perdure_process_starts_total", "Attempts to start a process", "outcome")
PROCESS_START_SECONDS: Final = Histogram(
    "perdure_process_start_seconds", "From the request for a process to its first word", bounds=_SHORT
)
CLAIMS: Final = Counter("perdure_sessions_claimed_total", "Sessions that were claimed")
LEASE_RENEWALS: Final = Counter("perdure_lease_renewals_total", "Attempts to renew the worker's lease", "outcome")
LEASES_LOST: Final = Counter("perdure_leases_lost_total", "Leases that ran out while their worker was at work")

# --- the store

COMMITS: Final = Counter("perdure_commits_total", "Transactions that were committed")
COMMIT_SECONDS: Final = Histogram("perdure_commit_seconds", "From a transaction's begin to its flush", bounds=_SHORT)
COMMIT_COMMANDS: Final = Histogram("perdure_commit_commands", "Commands that shared a transaction", bounds=_SIZES)
STORE_RETRIES: Final = Counter("perdure_store_retries_total", "What was done again after a passing failure", "code")
HINTS_HEARD: Final = Counter("perdure_hints_heard_total", "Sessions that other processes said have changed")
HINTS_LISTENING: Final = Gauge("perdure_hints_listening", "1 while hints of other processes can arrive")

# --- the server

REQUESTS: Final = Counter("perdure_http_requests_total", "HTTP requests that were answered", "operation", "status")
REQUEST_SECONDS: Final = Histogram(
    "perdure_http_request_seconds",
    "Until an answer was complete, streams and waits left out",
    "operation",
    bounds=_SHORT,
)
WATCHERS: Final = Gauge("perdure_watchers", "Streams that are being followed")

ALL: Final[tuple[Instrument, ...]] = tuple(each for each in list(globals().values()) if isinstance(each, Instrument))
