"""The typed client of the HTTP API, blocking (`sync`) and for asyncio (`aio`), with streams that reconnect."""

from __future__ import annotations
