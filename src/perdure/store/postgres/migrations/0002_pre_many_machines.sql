-- Many machines: what servers and workers had in files of their own, and where a session's Computer is.

-- The id of the machine that holds a session's Computer; empty where any machine will do.
ALTER TABLE perdure.sessions ADD COLUMN home text COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX sessions_claimable ON perdure.sessions (home, id) WHERE owned AND worker IS NULL;
CREATE INDEX sessions_by_owner ON perdure.sessions (worker, home) WHERE owned;

ALTER TABLE perdure.leases ADD COLUMN machine text COLLATE "C";

-- How long the session's log is, so that whoever looks for what has changed reads no bodies.
ALTER TABLE perdure.heads ADD COLUMN seq bigint NOT NULL DEFAULT 0;
UPDATE perdure.heads SET seq = substring(convert_from(body, 'UTF8') FROM '"last_seq":([0-9]+)')::bigint
WHERE convert_from(body, 'UTF8') LIKE '%"last_seq":%';

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
