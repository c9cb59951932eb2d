"""The process host: each session's handlers in a process of their own, in a Computer."""

from __future__ import annotations
