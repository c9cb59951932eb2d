-- What servers and workers used to have in files beside the database, for installations that have it in the store.

-- The source of deployments, one of a digest.
CREATE TABLE archives (digest TEXT PRIMARY KEY, data BLOB NOT NULL);

CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER
);

-- Pieces of what runs printed, each with the number of its first byte.
CREATE TABLE run_logs (
    run BLOB NOT NULL,
    start INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, start)
);
