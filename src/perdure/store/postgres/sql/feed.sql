-- name: insert_commit
-- Which events this transaction has written in an environment, with its mark, which is $2 at least.
INSERT INTO perdure.commits (environment, mark, xid, at, sessions, firsts, lasts)
VALUES ($1, greatest(pg_current_xact_id()::text::bigint << 16, $2::bigint), pg_current_xact_id()::text::bigint, $3,
        $4::uuid[], $5::bigint[], $6::bigint[]);

-- name: feed
-- What cursors of this feed begin with, and where the environment's feed begins now.
SELECT f.id, coalesce(e.floor_mark, 0), coalesce(e.floor_xid, 0)
FROM perdure.feed f LEFT JOIN perdure.environments e ON e.id = $1;

-- name: commits
-- Commits from a place on, as far as nothing can be put in between any more.
SELECT mark, xid, sessions, firsts, lasts FROM perdure.commits
WHERE environment = $1 AND (mark, xid) >= ($2::bigint, $3::bigint)
  AND mark < pg_snapshot_xmin(pg_current_snapshot())::text::bigint << 16
ORDER BY mark, xid LIMIT $4;

-- name: newest_commit
-- The last of the commits that nothing can be put in before any more.
SELECT mark, xid FROM perdure.commits
WHERE environment = $1 AND mark < pg_snapshot_xmin(pg_current_snapshot())::text::bigint << 16
ORDER BY mark DESC, xid DESC LIMIT 1;

-- name: feed_events
-- Events of some ranges, with the ids of turns and runs: at least one event, else no more bytes than asked for; and how
-- many there are.
SELECT p.piece, p.session, p.seq, p.type, p.at, p.data, t.id, r.id, p.found
FROM (
    SELECT asked.piece, e.*, count(*) OVER () AS found,
           sum(octet_length(e.data)) OVER (ORDER BY asked.piece, e.seq ROWS UNBOUNDED PRECEDING) AS size,
           row_number() OVER (ORDER BY asked.piece, e.seq) AS place
    FROM unnest($1::integer[], $2::uuid[], $3::bigint[], $4::bigint[]) AS asked (piece, session, first, last)
    JOIN perdure.events e ON e.session = asked.session AND e.seq BETWEEN asked.first AND asked.last
) p
LEFT JOIN perdure.turns t ON t.session = p.session AND t.number = p.turn
LEFT JOIN perdure.runs r ON r.session = p.session AND r.number = p.run
WHERE p.place = 1 OR p.size <= $5
ORDER BY p.piece, p.seq;
