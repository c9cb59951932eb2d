"""The port behind which every Computer backend hides, and the words in which a backend says what it can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perdure.computers.identity import ProcessIdentity
from perdure.computers.limits import Limits
from perdure.computers.memory import Released

Residency = Literal["cold", "running", "hibernated"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend does on this host, found by trying it out.

    `isolation` and `keeps` are sentences for people: what separates a Computer from the host, and what a hibernated
    Computer keeps and loses. `limits` says for each of cpu, memory, open_files, file_size and disk how it is
    enforced, or that it is not. `saves` tells whether `save` and `restore` work.
    """

    backend: str
    isolation: str
    keeps: str
    limits: Mapping[str, str]
    saves: bool


@dataclass(frozen=True, slots=True)
class ComputerSpec:
    """What a Computer is made from: its limits and the variables that its template names."""

    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a guest is to be started: its folders on this host, its limits and its environment."""

    computer_id: str
    workspace: Path
    run: Path
    rlimits: Mapping[int, int]
    cores: frozenset[int] | None
    environment: Mapping[str, str]


Launcher = Callable[[Placement], Awaitable[ProcessIdentity]]


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a program ended. `exit_code` is negative for a signal, as in `subprocess`, and None after a timeout.

    `stdout` and `stderr` hold the first bytes up to the limit; `truncated` tells that there were more.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    timed_out: bool


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of a workspace; `path` is relative to it, `size` in bytes, `modified` in microseconds since 1970."""

    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: int
    modified: int


class Files(ABC):
    """The files of one Computer's workspace. Paths are relative to it; none reaches out of it, by `..` or by symlink.

    All raise `WorkspaceFileNotFound` for what is not there and `WorkspacePathRefused` for a path that leaves the
    workspace or is not of the needed kind.
    """

    @abstractmethod
    async def read(self, path: str, *, limit: int = 8 << 20) -> bytes:
        """Return a regular file's bytes. Raises `ContentTooLarge` above `limit`."""

    @abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Put a file in place as a whole; a reader sees the old one or the new one. Makes missing folders."""

    @abstractmethod
    async def stat(self, path: str) -> FileInfo:
        """Describe an entry; a symlink at the end is described itself."""

    @abstractmethod
    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Describe the entries of a folder, by name."""

    @abstractmethod
    async def delete(self, path: str) -> None:
        """Remove a file, a symlink or an empty folder."""


class Computer(ABC):
    """One sandbox: a disk, limits and the processes in it. What every backend guarantees:

    - The workspace outlives processes, workers and restarts of the machine; only `ComputerBackend.delete` ends it.
    - `start` runs one guest; the guest and everything that descends from it are the Computer's processes, wherever
      they move: all are limited, hibernated and stopped together.
    - After `hibernate` no process of the Computer runs, and after `resume` they go on from there: memory, open files
      and children included. What was in flight to the outside (sockets, wall clock) may have moved on.
    - After `stop` no process of the Computer is left.
    - A process is signalled only after its identity (pid, start time, boot) was compared; a reused pid never is.
    - A backend that cannot do something raises `NotSupported` and says what to use instead; it never pretends.
    - Nothing here waits for the guest's consent: asking it to be quiet first is the host's duty.
    """

    id: str

    @property
    @abstractmethod
    def workspace(self) -> Path:
        """Return the workspace's folder on this host."""

    @property
    @abstractmethod
    def run(self) -> Path:
        """Return the folder, on this host, in which worker and guest meet (`host.sock`, `meta.json`)."""

    @property
    @abstractmethod
    def files(self) -> Files:
        """Return the files of the workspace; usable in every residency."""

    @property
    @abstractmethod
    def guest(self) -> ProcessIdentity | None:
        """Return the living guest, also one that an earlier worker started, or None."""

    @property
    @abstractmethod
    def residency(self) -> Residency:
        """Return `running`, `hibernated`, or `cold` when no guest lives; read from the processes themselves."""

    @abstractmethod
    async def start(self, launcher: Launcher) -> ProcessIdentity:
        """Start the guest through `launcher` under this Computer's limits. Raises `ProcessStartFailed`."""

    @abstractmethod
    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 300.0,
        output_limit: int = 4 << 20,
    ) -> ExecResult:
        """Run a program in the workspace until it ends or `timeout` seconds pass; then it and its children are killed.

        A program that cannot be started gives exit code 126 or 127, as in a shell. Programs it leaves in the
        background stay, as the Computer's. Raises `NotSupported` while the Computer is hibernated.
        """

    @abstractmethod
    async def hibernate(self) -> Released:
        """Stop all processes, keep their state and give back what memory the host can take; report what that was."""

    @abstractmethod
    async def resume(self) -> None:
        """Let all processes go on. A no-op when they run."""

    @abstractmethod
    async def stop(self, grace: float = 5.0) -> None:
        """End all processes, SIGTERM first and SIGKILL after `grace` seconds; the disk stays. A no-op when cold."""

    @abstractmethod
    async def save(self) -> str:
        """Store the disk as a version and return its id. Raises `NotSupported`."""

    @abstractmethod
    async def restore(self, save_id: str) -> None:
        """Make the disk that of a stored version. Raises `NotSupported`."""


class ComputerBackend(ABC):
    """Makes and finds the Computers of one kind on this host."""

    name: str

    @abstractmethod
    async def capabilities(self) -> Capabilities:
        """Return what this backend does here; tried out at the first call, remembered after."""

    @abstractmethod
    async def open(self, computer_id: str, spec: ComputerSpec) -> Computer:
        """Return the Computer of that id, made if it is new, found with its disk and processes if it is not."""

    @abstractmethod
    async def delete(self, computer_id: str) -> None:
        """Stop the Computer and remove its disk for good."""
