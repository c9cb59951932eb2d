-- The schema, as it is now: what all migrations together lead to, which a test proves.
--
-- Everything lives in a schema of its own and is named in full, since behind a pooler no session has a search path.
-- Ids are UUIDs. `number`, `turn`, `run` and `…seq` count within their session. Instants are microseconds since 1970 UTC.
-- Payloads are bytes of canonical JSON and never jsonb, which knows no NUL, no order of keys and no number beyond its own.

CREATE SCHEMA perdure;

-- `pre` migrations add and are done while older servers run; `post` ones remove, once none of them does.
CREATE TABLE perdure.migrations (
    number integer NOT NULL,
    phase text NOT NULL CHECK (phase IN ('pre', 'post')),
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (number, phase)
);

CREATE TABLE perdure.sessions (
    id uuid PRIMARY KEY,
    environment text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    status text COLLATE "C" NOT NULL,
    wake_at bigint,
    owned boolean NOT NULL,
    worker text COLLATE "C",
    home text COLLATE "C" NOT NULL DEFAULT '',
    ended_at bigint
);
CREATE UNIQUE INDEX sessions_by_key ON perdure.sessions (environment, key, agent) WHERE key IS NOT NULL;
CREATE INDEX sessions_by_status ON perdure.sessions (environment, status, id);
CREATE INDEX sessions_by_agent ON perdure.sessions (environment, agent, status, id);
CREATE INDEX sessions_due ON perdure.sessions (wake_at, id) WHERE wake_at IS NOT NULL;
CREATE INDEX sessions_owned ON perdure.sessions (id) WHERE owned;
CREATE INDEX sessions_claimable ON perdure.sessions (home, id) WHERE owned AND worker IS NULL;
CREATE INDEX sessions_ended ON perdure.sessions (environment, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX sessions_by_owner ON perdure.sessions (worker, home) WHERE owned;

-- Workers that are alive, or were. A session's `worker` is the one that has claimed it, its `home` the id of the machine
-- that holds its Computer, empty where any machine will do.
CREATE TABLE perdure.leases (
    worker text COLLATE "C" PRIMARY KEY,
    expires_at timestamptz NOT NULL,
    address text,
    machine text COLLATE "C"
) WITH (fillfactor = 20);

-- A head is locked by whoever decides about its session, and changes with every commit: it lives apart from the indexed
-- columns, which change seldom, with room in its page for the next version. `live` tells that there are live slots, `seq` how long the
-- session's log is, so that whoever looks for what has changed reads no bodies.
CREATE TABLE perdure.heads (
    session uuid PRIMARY KEY,
    live boolean NOT NULL,
    body bytea NOT NULL,
    seq bigint NOT NULL DEFAULT 0,
    mark bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE perdure.events (
    session uuid NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    turn integer,
    run integer,
    op integer,
    type text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (session, seq)
);

-- What went into a turn and what came of it is in the events queued_seq and ended_seq.
CREATE TABLE perdure.turns (
    session uuid NOT NULL,
    number integer NOT NULL,
    id uuid NOT NULL,
    status text COLLATE "C" NOT NULL,
    queued_seq bigint NOT NULL,
    created_at bigint NOT NULL,
    run integer,
    started_at bigint,
    ended_seq bigint,
    ended_at bigint,
    reason text,
    PRIMARY KEY (session, number),
    CONSTRAINT turns_by_id UNIQUE (id)
) WITH (fillfactor = 70);

CREATE TABLE perdure.runs (
    session uuid NOT NULL,
    number integer NOT NULL,
    id uuid NOT NULL,
    recovery text NOT NULL,
    deployment text NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint,
    end_reason text,
    PRIMARY KEY (session, number),
    CONSTRAINT runs_by_id UNIQUE (id)
);

-- A hold's message is bytes, because people may write NUL.
CREATE TABLE perdure.holds (
    session uuid NOT NULL,
    id uuid NOT NULL,
    reason text NOT NULL,
    issuer_kind text NOT NULL,
    issuer_id text NOT NULL,
    message bytea,
    created_at bigint NOT NULL,
    released_at bigint,
    PRIMARY KEY (session, id)
);

CREATE TABLE perdure.asks (
    session uuid NOT NULL,
    id uuid NOT NULL,
    turn integer NOT NULL,
    status text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    ended_at bigint,
    response_id text,
    responder_kind text,
    responder_id text,
    control bytea NOT NULL,
    prompt bytea NOT NULL,
    answer bytea,
    PRIMARY KEY (session, id)
);
CREATE INDEX asks_by_status ON perdure.asks (session, status, id);

CREATE TABLE perdure.messages (
    session uuid NOT NULL,
    id uuid NOT NULL,
    turn integer NOT NULL,
    status text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    reason text,
    content bytea NOT NULL,
    PRIMARY KEY (session, id)
);

CREATE TABLE perdure.live (
    session uuid NOT NULL,
    slot text COLLATE "C" NOT NULL,
    turn integer NOT NULL,
    at bigint NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (session, slot)
) WITH (fillfactor = 50);

-- Scope and request are digests; the receipt is what the first caller got.
CREATE TABLE perdure.idempotency (
    scope bytea PRIMARY KEY,
    request bytea NOT NULL,
    receipt bytea NOT NULL,
    environment text COLLATE "C" NOT NULL DEFAULT '',
    at bigint NOT NULL DEFAULT 0
);
CREATE INDEX receipts_by_age ON perdure.idempotency (environment, at) WHERE environment <> '';

-- The feed of an environment: one row for each transaction, which events of which sessions it has written. `mark` orders
-- commits: it is never below the transaction's own number times 2^16, and above the marks of all commits that this one
-- has seen the heads of. So what is below the oldest transaction that is still open is complete, and what comes after
-- something has a higher mark, though its transaction may have begun earlier.
CREATE TABLE perdure.commits (
    environment text COLLATE "C" NOT NULL,
    mark bigint NOT NULL,
    xid bigint NOT NULL,
    at bigint NOT NULL,
    sessions uuid[] NOT NULL,
    firsts bigint[] NOT NULL,
    lasts bigint[] NOT NULL,
    PRIMARY KEY (environment, mark, xid)
);

-- A cursor is good for the feed that it was given by, and for no other.
CREATE TABLE perdure.feed (id text NOT NULL);
INSERT INTO perdure.feed SELECT left(md5(gen_random_uuid()::text), 8);

-- Up to `floor_…` the feed is gone by retention. `keep_…` is for how many microseconds what has ended is kept.
CREATE TABLE perdure.environments (
    id text COLLATE "C" PRIMARY KEY,
    current_deployment uuid,
    created_at bigint NOT NULL,
    floor_mark bigint NOT NULL DEFAULT 0,
    floor_xid bigint NOT NULL DEFAULT 0,
    keep_events bigint,
    keep_sessions bigint,
    keep_receipts bigint
);

CREATE TABLE perdure.deployments (
    id uuid PRIMARY KEY,
    environment text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    source text NOT NULL,
    live boolean NOT NULL,
    agents bytea NOT NULL,
    CONSTRAINT deployments_by_digest UNIQUE (environment, digest)
);
CREATE INDEX deployments_by_environment ON perdure.deployments (environment, id);

-- The source of deployments, one of a digest; it is compressed already.
CREATE TABLE perdure.archives (digest text COLLATE "C" PRIMARY KEY, data bytea NOT NULL);
ALTER TABLE perdure.archives ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE perdure.api_keys (
    id text COLLATE "C" PRIMARY KEY,
    name bytea NOT NULL,
    sha256 text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    ended_at bigint
);

-- Pieces of what runs printed, each with the number of its first byte.
CREATE TABLE perdure.run_logs (
    run uuid NOT NULL,
    start bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (run, start)
);

-- One row for each connection that a process commits on, with the number of its newest commit: whoever lost the
-- connection during a commit reads here whether it happened. Its lock tells whether it may still happen.
CREATE TABLE perdure.writers (
    id uuid NOT NULL,
    lane integer NOT NULL,
    batch bigint NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (id, lane)
) WITH (fillfactor = 20);

-- What came of a step is in the event `ended_seq`. Names are bytes, because people may write NUL.
CREATE TABLE perdure.steps (
    session uuid NOT NULL,
    turn integer NOT NULL,
    name bytea NOT NULL,
    replay text NOT NULL,
    status text NOT NULL,
    request bytea NOT NULL,
    run integer NOT NULL,
    attempts integer NOT NULL,
    started_at bigint NOT NULL,
    ended_seq bigint,
    PRIMARY KEY (session, turn, name)
);

CREATE TABLE perdure.memos (
    session uuid NOT NULL,
    turn integer NOT NULL,
    name bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (session, turn, name)
);
