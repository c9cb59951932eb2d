"""The command line, one module a command group, written on the typed client."""

from __future__ import annotations
