-- The feed of an environment: its events over all sessions, in the order of their commits.

-- `mark` orders commits: it is never below the transaction's own number times 2^16, and above the marks of all commits
-- that this one has seen the heads of. So what is below the oldest transaction that is still open is complete, and what
-- comes after something has a higher mark, though its transaction may have begun earlier.
ALTER TABLE perdure.heads ADD COLUMN mark bigint NOT NULL DEFAULT 0;

-- One row for each transaction and environment: which events of which sessions it has written.
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

-- What was before stands in the feed as one commit a session.
INSERT INTO perdure.commits (environment, mark, xid, at, sessions, firsts, lasts)
SELECT s.environment, row_number() OVER (ORDER BY s.id), 0, e.at, ARRAY[s.id], ARRAY[1::bigint], ARRAY[e.seq]
FROM perdure.sessions s JOIN perdure.heads h ON h.session = s.id
JOIN perdure.events e ON e.session = h.session AND e.seq = h.seq;

-- Up to where the feed is gone by retention.
ALTER TABLE perdure.environments ADD COLUMN floor_mark bigint NOT NULL DEFAULT 0;
ALTER TABLE perdure.environments ADD COLUMN floor_xid bigint NOT NULL DEFAULT 0;

-- A cursor is good for the feed that it was given by, and for no other.
CREATE TABLE perdure.feed (id text NOT NULL);
INSERT INTO perdure.feed SELECT left(md5(gen_random_uuid()::text), 8);
