"""A Python that has all of `perdure dev` imported and forks servers from itself, so that a start costs no import.

Run as `python warm.py FD` with a unix socket as descriptor FD. A request is one JSON object, with the new server's
stdout and stderr as descriptors beside it; the answer is its pid, with a pidfd beside it. A server is a process as any
other: it may be killed, and what it leaves behind is on the disk.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1


class Warm:
    """The test's end."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            command = [sys.executable, str(Path(__file__)), str(other.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()])

    def spawn(self, request: dict[str, Any], stdout: int, stderr: int) -> tuple[int, int]:
        """Fork a server and return its pid and a pidfd of it."""
        socket.send_fds(self._socket, [json.dumps(request).encode()], [stdout, stderr])
        answer, descriptors, _, _ = socket.recv_fds(self._socket, 64, 1)
        return int(answer), descriptors[0]

    def close(self) -> None:
        """End it, and with it all its servers."""
        self._socket.close()
        self._process.wait(10)


def main(descriptor: str) -> None:
    import uvloop  # noqa: F401

    import perdure.server.dev
    import perdure.store.sqlite  # noqa: F401
    from perdure.cli.commands import make_app

    make_app()
    # Servers are nobody's to wait for: pidfds tell of their ends.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(descriptor)) as line:
        while True:
            request, outputs, _, _ = socket.recv_fds(line, 1 << 16, 2)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                line.close()
                be_server(json.loads(request), *outputs)
            pidfd = os.pidfd_open(pid)
            socket.send_fds(line, [str(pid).encode()], [pidfd])
            for owned in (pidfd, *outputs):
                os.close(owned)


def be_server(request: dict[str, Any], stdout: int, stderr: int) -> NoReturn:
    import uuid_utils

    from perdure import crashpoints
    from perdure.cli.main import run

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    os.closerange(3, 256)
    uuid_utils.reseed_rng()
    os.environ.update(request["environment"])
    crashpoints.arm(os.environ.get(crashpoints.VARIABLE))
    os._exit(run(request["arguments"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
