from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import server_fakes as fake

from perdure.errors import AuthenticationRequired, StoreError
from perdure.records.sessions import Issuer
from perdure.server.auth import AuthPolicy, hash_key, is_loopback
from perdure.server.keys import FILE, PREFIX, create_key, list_keys, load_policy, revoke_key

PATH = f"/v1/sessions/{fake.SESSION}/close"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def status_of(headers: list[tuple[str, str]], keys: list[str] | None = None, path: str = PATH) -> tuple[int, str]:
    """Return status and error code of a request with exactly these headers."""
    service = fake.FakeService(close=b"{}", check_ready=None)
    app = fake.app_of(service, keys or [])
    async with fake.client_of(app, "http://placeholder") as client:
        method = "POST" if path == PATH else "GET"
        request = client.build_request(method, path)
        request.headers.clear()
        request.headers.update(headers)
        reply = await client.send(request)
    if reply.status_code >= 400 and path == PATH:
        assert service.calls == []
    return reply.status_code, "" if reply.is_success else reply.json()["error"]["code"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:7373", "[::1]", "[::1]:7373"])
async def test_loopback_hosts_are_let_in(host: str) -> None:
    assert await status_of([("host", host)]) == (200, "")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7373",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@localhost",
        "localhost:80:evil.example",
        "localhost:x",
        "[::1]evil.example",
        "[::1",
        "10.0.0.5",
        "0.0.0.0",
        "",
    ],
)
async def test_other_hosts_are_kept_out(host: str) -> None:
    assert await status_of([("host", host)]) == (403, "host_not_allowed")


async def test_no_host_and_two_hosts_are_kept_out() -> None:
    assert await status_of([]) == (403, "host_not_allowed")
    app = fake.app_of(fake.FakeService(close=b"{}"))
    async with fake.client_of(app, "http://placeholder") as client:
        reply = await client.post(PATH, headers=[("host", "localhost"), ("host", "evil.example")])
    assert reply.status_code == 403


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173"])
async def test_pages_of_this_machine_may_ask(origin: str) -> None:
    assert await status_of([("host", "localhost"), ("origin", origin)]) == (200, "")


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost.evil.example",
        "http://localhost@evil.example",
        "null",
        "",
        "file://localhost",
        "http://[::1",
        "localhost",
    ],
)
async def test_pages_of_others_may_not(origin: str) -> None:
    assert await status_of([("host", "localhost"), ("origin", origin)]) == (403, "host_not_allowed")


async def test_health_and_description_are_behind_the_host_check_too() -> None:
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert await status_of([("host", "evil.example")], path=path) == (403, "host_not_allowed")
        assert await status_of([("host", "localhost")], path=path) == (200, "")


async def test_with_keys_a_valid_one_is_needed_and_any_host_will_do() -> None:
    keys = [hash_key("prd_sk_one"), hash_key("prd_sk_two")]
    host = ("host", "perdure.example")
    assert await status_of([host, ("authorization", "Bearer prd_sk_two")], keys) == (200, "")
    assert await status_of([host, ("authorization", "bearer  prd_sk_one")], keys) == (200, "")
    for given in (
        "",
        "Bearer",
        "Bearer ",
        "Bearer prd_sk_three",
        "Basic prd_sk_one",
        "prd_sk_one",
        f"Bearer {keys[0]}",
    ):
        assert await status_of([host, ("authorization", given)], keys) == (401, "authentication_required"), given
    assert await status_of([host], keys) == (401, "authentication_required")
    assert await status_of([("host", "localhost")], keys) == (401, "authentication_required")


async def test_with_keys_health_and_description_stay_open_and_nothing_else() -> None:
    keys = [hash_key("prd_sk_one")]
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert await status_of([("host", "x.example")], keys, path) == (200, "")
    for path in ("/v1/server", "/v1/nope", "/v1", "/"):
        assert (await status_of([("host", "x.example")], keys, path))[0] == 401


async def test_two_authorizations_are_none() -> None:
    app = fake.app_of(fake.FakeService(close=b"{}"), [hash_key("prd_sk_one")])
    async with fake.client_of(app) as client:
        reply = await client.post(PATH, headers=[("authorization", "Bearer prd_sk_one"), ("authorization", "Bearer x")])
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"


def test_the_issuer_names_the_key_without_telling_it() -> None:
    policy = AuthPolicy([hash_key("prd_sk_one")])
    issuer = policy.admit("/v1/server", [(b"authorization", b"Bearer prd_sk_one")])
    assert issuer == Issuer("api_key", hash_key("prd_sk_one")[:8])
    assert AuthPolicy().admit("/v1/server", [(b"host", b"localhost")]) == Issuer("user", "local")


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_only_loopback_may_be_bound_without_keys(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback
    AuthPolicy([hash_key("k")]).check_bind(address)
    if loopback:
        AuthPolicy().check_bind(address)
    else:
        with pytest.raises(AuthenticationRequired, match="API key"):
            AuthPolicy().check_bind(address)


def test_a_name_is_not_loopback_whatever_it_resolves_to() -> None:
    assert not is_loopback("localhost.example")


def test_a_key_is_kept_as_its_hash_in_a_file_of_its_owner(tmp_path: Path) -> None:
    made = create_key(tmp_path / "data", "ci")
    again = create_key(tmp_path / "data", "laptop")
    path = tmp_path / "data" / FILE
    assert made.secret.startswith(PREFIX)
    assert len(made.secret) >= len(PREFIX) + 43
    assert made.secret != again.secret
    assert made.secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [(key.id, key.name) for key in list_keys(tmp_path / "data")] == [(made.id, "ci"), (again.id, "laptop")]
    assert os.listdir(tmp_path / "data") == [FILE]
    issuer = load_policy(tmp_path / "data").admit("/v1/x", [(b"authorization", f"Bearer {made.secret}".encode())])
    assert issuer == Issuer("api_key", made.id)


def test_a_revoked_key_opens_nothing(tmp_path: Path) -> None:
    made, kept = create_key(tmp_path, "a"), create_key(tmp_path, "b")
    assert revoke_key(tmp_path, made.id)
    assert not revoke_key(tmp_path, made.id)
    policy = load_policy(tmp_path)
    with pytest.raises(AuthenticationRequired):
        policy.admit("/v1/x", [(b"authorization", f"Bearer {made.secret}".encode())])
    assert policy.admit("/v1/x", [(b"authorization", f"Bearer {kept.secret}".encode())]).id == kept.id


def test_a_folder_without_keys_makes_an_open_policy(tmp_path: Path) -> None:
    assert not load_policy(tmp_path).has_keys


def test_a_broken_key_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"keys":[{"id":1}]}')
    with pytest.raises(StoreError, match=FILE):
        load_policy(tmp_path)


def test_keys_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        create_key(tmp_path / "file", "x")
