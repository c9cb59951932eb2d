"""Restate as the harness drives it: its server from npm, its SDK from PyPI."""

from __future__ import annotations
