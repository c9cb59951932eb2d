CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER
);

CREATE TABLE archives (digest TEXT PRIMARY KEY, data BLOB NOT NULL);

CREATE TABLE asks (
    sid INTEGER NOT NULL,
    id BLOB NOT NULL,
    turn INTEGER NOT NULL,
    status TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER,
    response_id TEXT,
    responder_kind TEXT,
    responder_id TEXT,
    control BLOB NOT NULL,
    prompt BLOB NOT NULL,
    answer BLOB,
    PRIMARY KEY (sid, id)
);

CREATE TABLE commits (
    environment TEXT NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    ranges BLOB NOT NULL,
    PRIMARY KEY (environment, number)
) WITHOUT ROWID;

CREATE TABLE deployments (
    id BLOB PRIMARY KEY,
    environment TEXT NOT NULL,
    digest TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    source TEXT NOT NULL,
    live INTEGER NOT NULL,
    agents BLOB NOT NULL,
    UNIQUE (environment, digest)
);

CREATE TABLE environments (
    id TEXT PRIMARY KEY,
    current_deployment BLOB,
    created_at INTEGER NOT NULL
, floor INTEGER NOT NULL DEFAULT 0, keep_events INTEGER, keep_sessions INTEGER, keep_receipts INTEGER) WITHOUT ROWID;

CREATE TABLE events (
    pos INTEGER PRIMARY KEY,
    type NOT NULL,
    at INTEGER NOT NULL,
    turn INTEGER,
    run INTEGER,
    op INTEGER,
    data BLOB NOT NULL
);

CREATE TABLE feed (id TEXT NOT NULL);

CREATE TABLE heads (sid INTEGER PRIMARY KEY, body BLOB NOT NULL);

CREATE TABLE holds (
    sid INTEGER NOT NULL,
    id BLOB NOT NULL,
    reason TEXT NOT NULL,
    issuer_kind TEXT NOT NULL,
    issuer_id TEXT NOT NULL,
    message TEXT,
    created_at INTEGER NOT NULL,
    released_at INTEGER,
    PRIMARY KEY (sid, id)
) WITHOUT ROWID;

CREATE TABLE idempotency (scope BLOB NOT NULL PRIMARY KEY, request BLOB NOT NULL, receipt BLOB NOT NULL, environment TEXT NOT NULL DEFAULT '', at INTEGER NOT NULL DEFAULT 0);

CREATE TABLE live (
    sid INTEGER NOT NULL,
    slot TEXT NOT NULL,
    turn INTEGER NOT NULL,
    at INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (sid, slot)
);

CREATE TABLE memos (pos INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (pos, name)) WITHOUT ROWID;

CREATE TABLE messages (
    sid INTEGER NOT NULL,
    id BLOB NOT NULL,
    turn INTEGER NOT NULL,
    status TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    reason TEXT,
    content BLOB NOT NULL,
    PRIMARY KEY (sid, id)
);

CREATE TABLE run_logs (
    run BLOB NOT NULL,
    start INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, start)
);

CREATE TABLE runs (
    pos INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    recovery TEXT NOT NULL,
    deployment BLOB NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    end_reason TEXT
);

CREATE TABLE schema_version (version INTEGER NOT NULL);

CREATE TABLE sessions (
    sid INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    environment TEXT NOT NULL,
    agent TEXT NOT NULL,
    key TEXT,
    status TEXT NOT NULL,
    wake_at INTEGER,
    owned INTEGER NOT NULL
, ended_at INTEGER);

CREATE TABLE steps (
    pos INTEGER NOT NULL,
    name TEXT NOT NULL,
    replay TEXT NOT NULL,
    status TEXT NOT NULL,
    request BLOB NOT NULL,
    run INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_seq INTEGER,
    PRIMARY KEY (pos, name)
) WITHOUT ROWID;

CREATE TABLE turns (
    pos INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    status INTEGER NOT NULL,
    queued_seq INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    run INTEGER,
    started_at INTEGER,
    ended_seq INTEGER,
    ended_at INTEGER,
    reason TEXT
);

CREATE INDEX asks_by_status ON asks (sid, status, id);

CREATE INDEX deployments_by_environment ON deployments (environment, id);

CREATE INDEX receipts_by_age ON idempotency (environment, at) WHERE environment <> '';

CREATE INDEX sessions_by_agent ON sessions (environment, agent, status, id);

CREATE UNIQUE INDEX sessions_by_key ON sessions (environment, key, agent) WHERE key IS NOT NULL;

CREATE INDEX sessions_by_status ON sessions (environment, status, id);

CREATE INDEX sessions_due ON sessions (wake_at, id) WHERE wake_at IS NOT NULL;

CREATE INDEX sessions_ended ON sessions (environment, ended_at) WHERE ended_at IS NOT NULL;

CREATE INDEX sessions_owned ON sessions (id) WHERE owned = 1;

