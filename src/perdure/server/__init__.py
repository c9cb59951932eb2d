"""The HTTP API: a thin layer over the engine's service."""
