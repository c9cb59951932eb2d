"""Perdure as the harness drives it: in process (driver.py, engine.py) and as a real server process (server.py)."""

from __future__ import annotations
