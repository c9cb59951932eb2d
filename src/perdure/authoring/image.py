"""Images: how the root file system of a Computer is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from perdure.authoring.checks import check_env, check_name, check_text
from perdure.errors import DefinitionError
from perdure.records.definitions import CopyStep, EnvStep, ImageDefinition, ImageStep, RunStep, UserStep, WorkdirStep

STEPS: Final = 10_000
ARGUMENTS: Final = 1024
ARGUMENT_BYTES: Final = 64 * 1024
ARGV_BYTES: Final = 1024 * 1024
ENV_BYTES: Final = 1024 * 1024
REFERENCE_LENGTH: Final = 512


class Image:
    """A recipe of an image, as an immutable chain: each method returns a new `Image` with one more step.

    >>> Image("tools").from_("python:3.12-slim").run(["pip", "install", "ruff"]).workdir("/workspace")  # doctest: +SKIP

    Which backends build images is the backends' to say; the `local` one runs on the machine's own file system and
    uses none.
    """

    __slots__ = ("_base", "_id", "_steps")

    def __init__(self, id: str) -> None:
        self._id = check_name("Image", id)
        self._base: str | None = None
        self._steps: tuple[ImageStep, ...] = ()

    @property
    def id(self) -> str:
        """The image's name, unique in its project."""
        return self._id

    def from_(self, reference: str) -> Image:
        """Start from a base image such as `python:3.12-slim`. Comes first, once."""
        if self._base is not None:
            raise DefinitionError(f"{self}: from_() was called already, with {self._base!r}.")
        if not isinstance(reference, str) or not 0 < len(reference) <= REFERENCE_LENGTH or not reference.isprintable():
            raise DefinitionError(f"{self}: {reference!r} is not an image reference, such as 'python:3.12-slim'.")
        if any(char.isspace() for char in reference):
            raise DefinitionError(f"{self}: the image reference {reference!r} contains white space.")
        return self._chained(reference, self._steps)

    def run(self, argv: Sequence[str]) -> Image:
        """Run a program while the image is built. `argv` is a list of arguments; no shell reads it."""
        return self._with(RunStep(self._argv(argv)))

    def copy(self, dest: str, source: str) -> Image:
        """Copy a file or folder of the project to an absolute path. `source` is relative to the project's root."""
        return self._with(CopyStep(self._absolute("dest", dest), self._inside("source", source)))

    def workdir(self, path: str) -> Image:
        """Set the folder, an absolute path, in which later steps and the agent start."""
        return self._with(WorkdirStep(self._absolute("workdir", path)))

    def env(self, **variables: str) -> Image:
        """Set environment variables for later steps and the agent."""
        return self._with(EnvStep(check_env(str(self), variables, ENV_BYTES)))

    def user(self, user: str) -> Image:
        """Set the user, by name or `uid[:gid]`, that later steps and the agent run as."""
        if not isinstance(user, str) or not 0 < len(user) <= 256 or not user.isprintable() or " " in user:
            raise DefinitionError(f"{self}: {user!r} is not a user's name or uid.")
        return self._with(UserStep(user))

    def definition(self) -> ImageDefinition:
        """Return the recipe as plain data. Raises `DefinitionError` when it has no base image."""
        if self._base is None:
            raise DefinitionError(f"{self} has no base image; begin with Image(…).from_('python:3.12-slim').")
        return ImageDefinition(id=self._id, base=self._base, steps=self._steps)

    def _with(self, step: ImageStep) -> Image:
        if self._base is None:
            raise DefinitionError(f"{self}: call from_() first, then the steps.")
        if len(self._steps) >= STEPS:
            raise DefinitionError(f"{self}: it has {STEPS} steps, which is the limit.")
        return self._chained(self._base, (*self._steps, step))

    def _chained(self, base: str, steps: tuple[ImageStep, ...]) -> Image:
        image = Image(self._id)
        image._base, image._steps = base, steps
        return image

    def _argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        if isinstance(argv, str) or not argv or not all(isinstance(argument, str) for argument in argv):
            raise DefinitionError(f"{self}: run() takes a list of arguments, such as ['pip', 'install', 'ruff'].")
        sizes = [len(check_text(str(self), "an argument", argument).encode()) for argument in argv]
        if len(sizes) > ARGUMENTS or max(sizes) > ARGUMENT_BYTES or sum(sizes) > ARGV_BYTES:
            raise DefinitionError(
                f"{self}: run() has {len(sizes)} arguments, {max(sizes)} bytes in the longest and {sum(sizes)} in all; "
                f"the limits are {ARGUMENTS}, {ARGUMENT_BYTES} and {ARGV_BYTES}."
            )
        return tuple(argv)

    def _absolute(self, field: str, path: str) -> str:
        if not isinstance(path, str) or not path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise DefinitionError(f"{self}: {field}={path!r} must be an absolute path without '..'.")
        return str(PurePosixPath(check_text(str(self), field, path)))

    def _inside(self, field: str, path: str) -> str:
        if not isinstance(path, str) or not path or path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise DefinitionError(f"{self}: {field}={path!r} must be a path inside the project, relative to its root.")
        return str(PurePosixPath(check_text(str(self), field, path)))

    def __str__(self) -> str:
        return f"Image {self._id!r}"

    def __repr__(self) -> str:
        return f"<Image {self._id!r} from {self._base!r}, {len(self._steps)} steps>"
