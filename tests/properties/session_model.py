"""What a session is, in the fewest words: the model that the machine compares the real one with."""

from __future__ import annotations

from dataclasses import dataclass, field

MINUTE = 60_000_000
DEADLINE = 10 * MINUTE
IDLE = 60 * MINUTE


@dataclass
class Model:
    """One session as it should be. Turns are numbers; `outcomes` are the statuses of ended ones."""

    id: str
    agent: str
    key: str | None
    idle_since: int | None
    status: str = "open"
    queue: list[int] = field(default_factory=list)
    active: int | None = None
    started_at: int = 0
    holds: list[str] = field(default_factory=list)
    hold_reasons: dict[str, str] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    outcomes: dict[int, str] = field(default_factory=dict)
    responses: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, list[str]] = field(default_factory=dict)
    messages: dict[int, list[str]] = field(default_factory=dict)
    listening: bool = False
    asking: str | None = None
    clings: bool = False
    winding: int | None = None
    losses: int = 0
    last: int = 0

    @property
    def is_over(self) -> bool:
        return self.status in ("closed", "cancelled")

    def accept(self, now: int) -> int:
        self.last += 1
        self.queue.append(self.last)
        self.go_on(now)
        return self.last

    def go_on(self, now: int) -> None:
        """Start the next turn if it may run; close when a closing session has drained."""
        free = self.active is None and self.winding is None and not self.holds
        if free and self.queue and not self.is_over:
            self.active, self.started_at = self.queue.pop(0), now
            self.idle_since, self.listening, self.asking, self.clings = None, False, None, False
        if self.status == "closing" and free and self.active is None and not self.queue:
            self.status = "closed"

    def end(self, outcome: str, now: int) -> None:
        assert self.active is not None
        self.outcomes[self.active] = outcome
        self.active, self.idle_since, self.asking = None, now, None

    def stop(self, outcome: str, now: int) -> None:
        """End the running turn from outside; one that clings keeps the next from starting."""
        self.winding = self.active if self.clings else None
        self.end(outcome, now)

    def let_go(self, now: int) -> None:
        self.winding = None
        self.go_on(now)

    def hold(self, hold_id: str, reason: str) -> None:
        self.holds.append(hold_id)
        self.hold_reasons[hold_id] = reason

    def release(self, hold_id: str, now: int) -> None:
        self.holds.remove(hold_id)
        self.released.append(hold_id)
        if self.hold_reasons[hold_id] == "process_failures":
            self.losses = 0
        self.go_on(now)

    def close(self, now: int) -> None:
        if self.status == "open":
            self.status = "closing"
        self.go_on(now)

    def cancel(self, now: int) -> None:
        if self.is_over:
            return
        if self.active is not None:
            self.stop("cancelled", now)
        # Nothing comes after, so that its process is ended at once.
        self.winding = None
        self.outcomes.update(dict.fromkeys(self.queue, "cancelled"))
        self.queue.clear()
        self.status = "cancelled"

    def is_past_deadline(self, now: int) -> bool:
        return self.active is not None and now >= self.started_at + DEADLINE

    def is_past_idle(self, now: int) -> bool:
        at_rest = self.status == "open" and self.active is None and not self.queue
        return at_rest and self.idle_since is not None and now >= self.idle_since + IDLE
