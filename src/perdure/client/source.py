"""What is deployed: a folder or file to pack, or an archive as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_ARCHIVE: Final = (".tar.gz", ".tgz")


def archive_of(source: str | Path | bytes) -> bytes:
    """Return the gzip tar of a project's folder, of a Python file, or of what is one already.

    Raises `ProjectError` kinds when the folder cannot be read or holds what must not be deployed.
    """
    if isinstance(source, bytes):
        return source
    path = Path(source)
    if path.is_file() and path.name.endswith(_ARCHIVE):
        return path.read_bytes()
    from perdure.deploy.archive import pack  # only here: who watches a session needs none of it

    return pack(path).data
