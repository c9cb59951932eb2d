"""An installation with something of everything in it, for the tests of the tools."""

from __future__ import annotations

from store_world import ADA, ENVIRONMENT, World, key, text

from perdure.records.ids import new_id
from perdure.records.sessions import ComputerState, SessionHead
from perdure.rules import commands
from perdure.store.port import ApiKey, Deployment, Retention


class Life:
    """An installation with something of everything in it."""

    running: SessionHead
    waiting: SessionHead
    closed: SessionHead
    hibernated: SessionHead
    deployment: Deployment
    ask: str

    async def live(self, world: World, *, steps: bool = True) -> None:
        """Make it; without `steps` as before there were any."""
        store = world.store
        self.deployment = Deployment(new_id(), ENVIRONMENT, "d1", 1_700, "/source", (), live=True)
        await store.put_deployment(self.deployment, b"\0source" * 1_000)
        await store.put_deployment(Deployment(new_id(), "demo/staging", "d2", 1_700, "/other", ()))
        await store.promote(ENVIRONMENT, self.deployment.id)
        await store.set_retention(ENVIRONMENT, Retention(events=10**15, receipts=7))
        await store.put_api_key(ApiKey("0123", "a \N{GRINNING FACE}\0", "ff", 5, 9))
        await self._sessions(world)
        if steps:
            await self._steps(world)

    async def _steps(self, world: World) -> None:
        worker = {"session_id": self.running.id, "fence": self.running.fence, "turn": 1}
        for name in ("done\0", "at work"):
            await world.apply(commands.BeginStep(name=name, replay="safe", request=b"r", **worker))
        await world.apply(commands.EndStep(name="done\0", status="completed", outcome_json=b"1", **worker))
        await world.apply(commands.KeepMemo(name="key\0", value_json=b"2", **worker))

    async def _sessions(self, world: World) -> None:
        store = world.store
        self.closed = await world.create(name="closed", said="x", start=True)
        await world.complete(self.closed)
        await world.apply(commands.Close(session_id=self.closed.id, control_id=new_id(), issuer=ADA))
        for number in range(3):
            session = await world.create(idempotency=key(f"create {number}"))
            await world.turns(session, 3)
        self.waiting = await world.create(name="waiting \N{GRINNING FACE}", said="one")
        await world.apply(
            commands.Interrupt(
                session_id=self.waiting.id, control_id=new_id(), hold_id=new_id(), issuer=ADA, message="a\0b"
            )
        )
        await world.enqueue(self.waiting, "two", idempotency=key("two"))
        self.running = await world.create(said="go", start=True, name="running", resumes=True)
        assert self.running.run is not None
        await store.append_log(self.running.run.id, 0, b"printed\0")
        self.ask = new_id()
        worker = {"session_id": self.running.id, "fence": self.running.fence, "turn": 1}
        await world.apply(commands.WriteLive(slot="s", content_json=text("live"), **worker))
        await world.apply(
            commands.CreateAsk(ask_id=self.ask, prompt_json=text("?"), control_json=b'{"kind":"text"}', **worker)
        )
        await world.apply(commands.TakeMessages(**worker))
        steer = commands.NewTurn(new_id(), text("psst"))
        await world.apply(commands.Send(session_id=self.running.id, turn=steer, message_id=new_id()))
        at_home = ComputerState(new_id(), "template", home="here")
        self.hibernated = await world.create(host="process", computer=at_home, said="x")

    def sleep(self, head: SessionHead) -> commands.Sleep:
        """Return what ends the run of an idle session."""
        assert head.run is not None
        return commands.Sleep(session_id=head.id, fence=head.fence, run_id=head.run.id, reason="idle", start=False)

    def close(self, head: SessionHead) -> commands.Close:
        """Return what ends a session."""
        return commands.Close(session_id=head.id, control_id=new_id(), issuer=ADA)
