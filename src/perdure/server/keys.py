"""API keys of a data folder: a file of hashes. A key itself is shown once, when it is made."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

import msgspec

from perdure.errors import StoreError
from perdure.records.ids import new_id
from perdure.records.instants import format_instant, now
from perdure.server.auth import SHOWN_DIGITS, AuthPolicy, hash_key

FILE: Final = "keys.json"
PREFIX: Final = "prd_sk_"
_SECRET_BYTES: Final = 32


class StoredKey(msgspec.Struct, frozen=True):
    """What is kept of a key. `id` is what appears as the issuer of what was asked with it."""

    id: str
    name: str
    sha256: str
    created_at: str


class NewKey(msgspec.Struct, frozen=True):
    """A key just made; `secret` is nowhere else and cannot be shown again."""

    id: str
    name: str
    secret: str


class _KeyFile(msgspec.Struct):
    keys: list[StoredKey]


def new_key(name: str) -> NewKey:
    """Return a key that nobody knows yet."""
    secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    return NewKey(hash_key(secret)[:SHOWN_DIGITS], name, secret)


def create_key(folder: Path, name: str) -> NewKey:
    """Make a key and keep its hash in the data folder; raises `StoreError` when that cannot be written."""
    key = new_key(name)
    stored = StoredKey(key.id, name, hash_key(key.secret), format_instant(now()))
    write_keys(folder, [*list_keys(folder), stored])
    return key


def revoke_key(folder: Path, key_id: str) -> bool:
    """Forget a key; tells whether there was one. A running server knows its keys from its start."""
    keys = list_keys(folder)
    kept = [key for key in keys if key.id != key_id]
    if len(kept) < len(keys):
        write_keys(folder, kept)
    return len(kept) < len(keys)


def list_keys(folder: Path) -> list[StoredKey]:
    """Return the keys of a data folder, oldest first; raises `StoreError` when the file cannot be understood."""
    path = folder / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=_KeyFile).keys
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"The API keys in {path} cannot be read: {error}. Nobody was let in; repair or remove it."
        ) from error


def load_policy(folder: Path) -> AuthPolicy:
    """Return the policy that the keys of a data folder make."""
    return AuthPolicy(key.sha256 for key in list_keys(folder))


def write_keys(folder: Path, keys: list[StoredKey]) -> None:
    """Keep these keys and no others in the data folder; raises `StoreError` when that cannot be written."""
    path, draft = folder / FILE, folder / f".{FILE}.{new_id()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(_KeyFile(keys)), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise StoreError(f"The API keys cannot be written to {path}: {error}. The keys are as they were.") from error
