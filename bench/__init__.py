"""Benchmarks: Perdure beside LangGraph, DBOS and the bare limit of the machine, in one run. See bench/README.md."""

from __future__ import annotations
