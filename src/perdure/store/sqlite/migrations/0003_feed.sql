-- The feed of an environment: its events over all sessions, in the order of their commits.

-- `ranges` are triples of eight bytes each: a session's sid, and the first and the last event that were written.
CREATE TABLE commits (
    environment TEXT NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    ranges BLOB NOT NULL,
    PRIMARY KEY (environment, number)
) WITHOUT ROWID;

-- Up to which commit the feed is gone by retention.
ALTER TABLE environments ADD COLUMN floor INTEGER NOT NULL DEFAULT 0;

-- A cursor is good for the feed that it was given by, and for no other.
CREATE TABLE feed (id TEXT NOT NULL);
INSERT INTO feed VALUES (lower(hex(randomblob(4))));
