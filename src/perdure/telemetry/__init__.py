"""What a process tells its operators: counts and durations for Prometheus, spans for OpenTelemetry.

Nothing is counted before `recording(True)`, and no span is made before `traces.install()`: until then each of these
calls costs one look at a flag. Neither package is loaded before it is needed.
"""
