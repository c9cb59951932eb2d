"""What a host is given for a run: its specification, and whom its runtime talks to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.hosts.protocol import Request, RunSpec
from perdure.records.definitions import AgentDefinition
from perdure.records.sessions import SessionHead

if TYPE_CHECKING:
    from perdure.engine.driver import SessionDriver


class RunDriver:
    """What one run's runtime talks to. Its fence is the run's: a runtime of an older run is refused by the store."""

    __slots__ = ("_owner", "fence", "run_id")

    def __init__(self, owner: SessionDriver, run_id: str, fence: int) -> None:
        self._owner = owner
        self.run_id = run_id
        self.fence = fence

    async def handle(self, request: Request) -> Any:
        """Commit what the runtime asks and return the answer."""
        return await self._owner.handle(self.fence, request)

    def lost(self, reason: str) -> None:
        """Hear that the runtime is gone."""
        self._owner.runtime_lost(self.fence, reason)


def spec_of(
    head: SessionHead, *, agent: AgentDefinition, source: str, log_path: str, computer_path: str | None
) -> RunSpec:
    """Return what a host needs to start or find the session's present run."""
    assert head.run is not None
    return RunSpec(
        session_id=head.id,
        run_id=head.run.id,
        number=head.run.number,
        agent=agent,
        deployment_id=head.deployment,
        source=source,
        log_path=log_path,
        epoch=head.fence,
        recovery=head.run.recovery,
        key=head.key,
        reason=head.run.reason,
        computer_id=head.computer.id if head.computer else None,
        computer_path=computer_path,
    )
