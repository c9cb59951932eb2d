"""Agents whose handlers do what the test tells them, one act at a time."""

from __future__ import annotations

from session_stage import play

import perdure

actor = perdure.Agent("actor", max_turn_duration="10m", close_after_idle="1h")


@actor.turn
async def turn(turn: perdure.Turn, ctx: perdure.TurnContext) -> str:
    return await play(turn, ctx)


thinker = perdure.Agent("thinker", max_turn_duration="10m", close_after_idle="1h")


@thinker.init
async def init(ctx: perdure.InitContext) -> str:
    return ctx.run.id


@thinker.turn
async def think(turn: perdure.Turn, ctx: perdure.TurnContext) -> str:
    assert ctx.init_result == ctx.run.id
    return await play(turn, ctx)
