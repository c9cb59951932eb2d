-- The feed of an environment: its events over all sessions, in the order of their commits.

-- `ranges` are triples of eight bytes each: a session's sid, and the first and the last event that were written.
CREATE TABLE commits (
    environment TEXT NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    ranges BLOB NOT NULL,
    PRIMARY KEY (environment, number)
) WITHOUT ROWID;

-- What was before stands in the feed as one commit a session.
INSERT INTO commits (environment, number, at, ranges)
SELECT s.environment, row_number() OVER (ORDER BY s.sid), e.at,
       unhex(printf('%016x%016x%016x', s.sid, 1, e.pos & 4294967295))
FROM sessions s JOIN events e ON e.pos = (SELECT max(pos) FROM events WHERE pos > s.sid << 32 AND pos < (s.sid + 1) << 32);

-- Up to which commit the feed is gone by retention.
ALTER TABLE environments ADD COLUMN floor INTEGER NOT NULL DEFAULT 0;

-- A cursor is good for the feed that it was given by, and for no other.
CREATE TABLE feed (id TEXT NOT NULL);
INSERT INTO feed VALUES (lower(hex(randomblob(4))));
