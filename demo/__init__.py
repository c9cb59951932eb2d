"""`make demo`: the tutorial with short timers, on a real server, broken on purpose where it promises to hold."""
