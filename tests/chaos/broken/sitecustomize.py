"""What chaos runs change in the processes that they start, and in no others: Python imports this module at its start.

`CHAOS_FENCE=off` takes the check of the fence away, as a careless build would. `CHAOS_BLIND=on` has drivers not see
from what comes back from the store that a session is another worker's by now. `CHAOS_HALTS=on` makes crash points of
the action `raise` stop the whole process with SIGSTOP instead; it goes on at SIGCONT as if nothing had been.
"""

from __future__ import annotations

import os
import signal

if os.environ.get("CHAOS_FENCE") == "off":
    from perdure.rules import guards

    guards.check_fence = lambda head, command: None

if os.environ.get("CHAOS_BLIND") == "on":
    from perdure.engine.driver import SessionDriver

    assert hasattr(SessionDriver, "_is_taken_over")
    SessionDriver._is_taken_over = lambda self, news: False

if os.environ.get("CHAOS_HALTS") == "on":
    from perdure import crashpoints

    def _halt(action: str, name: str, label: str) -> None:
        crashpoints._tell(name, label, action)
        os.kill(os.getpid(), signal.SIGSTOP)

    assert hasattr(crashpoints, "_act")
    crashpoints._act = _halt
