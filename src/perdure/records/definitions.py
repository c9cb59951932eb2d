"""Definitions: what a project's source says about its agents, as plain data that a deployment keeps.

Times are microseconds, sizes are bytes. A definition says nothing about where handlers live in memory.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from perdure.records.sessions import HostKind, Limits


class RunStep(msgspec.Struct, frozen=True, tag="run"):
    """Run a program, without a shell, while the image is built."""

    argv: tuple[str, ...]


class CopyStep(msgspec.Struct, frozen=True, tag="copy"):
    """Copy a file or folder of the project (`source`, relative to its root) to an absolute path in the image."""

    dest: str
    source: str


class WorkdirStep(msgspec.Struct, frozen=True, tag="workdir"):
    """Set the folder in which later steps and the agent start."""

    path: str


class EnvStep(msgspec.Struct, frozen=True, tag="env"):
    """Set environment variables for later steps and the agent."""

    variables: dict[str, str]


class UserStep(msgspec.Struct, frozen=True, tag="user"):
    """Set the user that later steps and the agent run as."""

    user: str


ImageStep: TypeAlias = RunStep | CopyStep | WorkdirStep | EnvStep | UserStep


class ImageDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an image is made: a base image's reference and the steps on top of it."""

    id: str
    base: str
    steps: tuple[ImageStep, ...] = ()


class TemplateDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The recipe of a Computer: its image, its resources and the environment of its processes.

    `pass_env` names variables that are taken over from the worker's own environment when a process starts.
    """

    id: str
    image: ImageDefinition
    cpu: float = 1.0
    memory: int
    disk: int | None = None
    env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()


class AgentDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a deployment knows of an agent. `file` is relative to the project's root, `line` counts from 1.

    `resumes` tells that a turn whose process is lost is gone on with by its journal, rather than interrupted.
    """

    id: str
    module: str
    file: str
    line: int
    template: TemplateDefinition | None = None
    has_init: bool = False
    close_after_idle: int | None = None
    hibernate_after_idle: int | None = None
    max_turn_duration: int | None = None
    resumes: bool = False

    @property
    def host(self) -> HostKind:
        """Where the agent's handlers run: in the worker, or in a process of a Computer's."""
        return "inline" if self.template is None else "process"

    @property
    def limits(self) -> Limits:
        """The times that sessions of this agent keep."""
        return Limits(self.close_after_idle, self.hibernate_after_idle, self.max_turn_duration)


_DEFINITION: Final = msgspec.json.Decoder(AgentDefinition)


def encode_definition(definition: AgentDefinition) -> bytes:
    """Return a definition as JSON bytes, to be kept with its deployment."""
    return msgspec.json.encode(definition)


def decode_definition(data: bytes) -> AgentDefinition:
    """Return a kept definition; fields that a newer Perdure added are passed over."""
    return _DEFINITION.decode(data)
