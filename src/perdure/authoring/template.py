"""Templates: recipes of the Computers in which agents with a process of their own live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.authoring.checks import check_cpu, check_env, check_env_names, check_name, check_size
from perdure.authoring.image import Image
from perdure.errors import DefinitionError
from perdure.records.definitions import TemplateDefinition


class Template:
    """The recipe of a Computer.

    `cpu` is a number of CPUs, `memory` and `disk` are sizes such as `512MiB` or `2GiB`. A process in the Computer does
    not inherit the worker's environment: it gets `env`, and the variables of the worker that `pass_env` names.
    Raises `DefinitionError` for a value that makes no sense.
    """

    __slots__ = ("_definition", "image")

    def __init__(
        self,
        id: str,
        *,
        image: Image,
        cpu: float = 1,
        memory: str = "1GiB",
        disk: str | None = None,
        env: Mapping[str, str] | None = None,
        pass_env: Iterable[str] = (),
    ) -> None:
        owner = f"Template {check_name('Template', id)!r}"
        if not isinstance(image, Image):
            raise DefinitionError(f"{owner}: image must be a perdure.Image, not a {type(image).__name__}.")
        self.image: Image = image
        self._definition = TemplateDefinition(
            id=id,
            image=image.definition(),
            cpu=check_cpu(owner, cpu),
            memory=check_size(owner, "memory", memory),
            disk=None if disk is None else check_size(owner, "disk", disk),
            env=check_env(owner, env or {}),
            pass_env=check_env_names(owner, pass_env),
        )
        if twice := set(self._definition.env) & set(self._definition.pass_env):
            raise DefinitionError(f"{owner}: {', '.join(sorted(twice))} is both in env and in pass_env; choose one.")

    @property
    def id(self) -> str:
        """The template's name, unique in its project."""
        return self._definition.id

    def definition(self) -> TemplateDefinition:
        """Return the recipe as plain data."""
        return self._definition

    def __repr__(self) -> str:
        return f"<Template {self.id!r}>"
