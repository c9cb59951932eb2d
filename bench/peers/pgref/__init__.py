"""The bare limit of three commits a turn on PostgreSQL, with group commit."""

from __future__ import annotations
