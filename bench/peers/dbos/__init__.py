"""See driver.py."""

from __future__ import annotations
