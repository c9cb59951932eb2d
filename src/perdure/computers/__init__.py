"""Computers: the sandboxes with a disk, limits and processes in which sessions' guests run."""

from __future__ import annotations
