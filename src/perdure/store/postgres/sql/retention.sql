-- name: retention
-- For how long an environment keeps what has ended.
SELECT keep_events, keep_sessions, keep_receipts FROM perdure.environments WHERE id = $1;

-- name: set_retention
-- Set for how long an environment keeps what has ended.
UPDATE perdure.environments SET keep_events = $2, keep_sessions = $3, keep_receipts = $4 WHERE id = $1 RETURNING id;

-- name: oldest_commits
-- The oldest commits of an environment's feed behind a place, with their times.
SELECT mark, xid, at, sessions, lasts FROM perdure.commits
WHERE environment = $1 AND (mark, xid) > ($2::bigint, $3::bigint) ORDER BY mark, xid LIMIT $4;

-- name: raise_feed_floor
-- Up to this place the feed is gone.
UPDATE perdure.environments SET floor_mark = $2, floor_xid = $3
WHERE id = $1 AND (floor_mark, floor_xid) < ($2::bigint, $3::bigint) RETURNING id;

-- name: drop_commits
-- Remove commits from the feed.
DELETE FROM perdure.commits WHERE environment = $1 AND (mark, xid) <= ($2::bigint, $3::bigint)
  AND (mark, xid) < (SELECT mark, xid FROM perdure.commits WHERE environment = $1 ORDER BY mark DESC, xid DESC LIMIT 1)
RETURNING mark;

-- name: prune_turns
-- Remove turns whose input is below the floor; they come in the order of their inputs, so that the first one tells
-- whether there are any. $3 is a time, for others.
DELETE FROM perdure.turns t USING (
    SELECT f.session, o.number
    FROM (
        SELECT * FROM unnest($1::uuid[], $2::bigint[]) AS given (session, floor)
        WHERE (SELECT queued_seq FROM perdure.turns WHERE session = given.session ORDER BY number LIMIT 1) <= floor
    ) f
    CROSS JOIN LATERAL (
        SELECT number, queued_seq FROM perdure.turns WHERE session = f.session ORDER BY number LIMIT $4
    ) o
    WHERE o.queued_seq <= f.floor AND $3::bigint IS NOT NULL LIMIT $4
) gone
WHERE t.session = gone.session AND t.number = gone.number RETURNING t.number;

-- name: prune_asks
-- Remove questions of turns that are gone.
DELETE FROM perdure.asks a USING (
    SELECT f.session, o.id
    FROM unnest($1::uuid[], $2::bigint[]) AS f (session, floor)
    CROSS JOIN LATERAL (SELECT id, turn FROM perdure.asks WHERE session = f.session ORDER BY id LIMIT $4) o
    WHERE NOT EXISTS (SELECT 1 FROM perdure.turns t WHERE t.session = f.session AND t.number = o.turn)
      AND $3::bigint IS NOT NULL LIMIT $4
) gone
WHERE a.session = gone.session AND a.id = gone.id RETURNING a.turn;

-- name: prune_messages
-- Remove steering messages to turns that are gone.
DELETE FROM perdure.messages m USING (
    SELECT f.session, o.id
    FROM unnest($1::uuid[], $2::bigint[]) AS f (session, floor)
    CROSS JOIN LATERAL (SELECT id, turn FROM perdure.messages WHERE session = f.session ORDER BY id LIMIT $4) o
    WHERE NOT EXISTS (SELECT 1 FROM perdure.turns t WHERE t.session = f.session AND t.number = o.turn)
      AND $3::bigint IS NOT NULL LIMIT $4
) gone
WHERE m.session = gone.session AND m.id = gone.id RETURNING m.turn;

-- name: prune_steps
-- Remove steps of turns that are gone.
DELETE FROM perdure.steps s USING (
    SELECT f.session, o.turn, o.name
    FROM unnest($1::uuid[], $2::bigint[]) AS f (session, floor)
    CROSS JOIN LATERAL (
        SELECT turn, name FROM perdure.steps WHERE session = f.session ORDER BY turn, name LIMIT $4
    ) o
    WHERE NOT EXISTS (SELECT 1 FROM perdure.turns t WHERE t.session = f.session AND t.number = o.turn)
      AND $3::bigint IS NOT NULL LIMIT $4
) gone
WHERE s.session = gone.session AND s.turn = gone.turn AND s.name = gone.name RETURNING s.turn;

-- name: prune_memos
-- Remove memos of turns that are gone.
DELETE FROM perdure.memos m USING (
    SELECT f.session, o.turn, o.name
    FROM unnest($1::uuid[], $2::bigint[]) AS f (session, floor)
    CROSS JOIN LATERAL (
        SELECT turn, name FROM perdure.memos WHERE session = f.session ORDER BY turn, name LIMIT $4
    ) o
    WHERE NOT EXISTS (SELECT 1 FROM perdure.turns t WHERE t.session = f.session AND t.number = o.turn)
      AND $3::bigint IS NOT NULL LIMIT $4
) gone
WHERE m.session = gone.session AND m.turn = gone.turn AND m.name = gone.name RETURNING m.turn;

-- name: prune_holds
-- Remove holds that were released long ago.
DELETE FROM perdure.holds h USING (
    SELECT o.session, o.id
    FROM unnest($1::uuid[], $2::bigint[]) AS f (session, floor)
    JOIN perdure.holds o ON o.session = f.session WHERE o.released_at < $3::bigint LIMIT $4
) gone
WHERE h.session = gone.session AND h.id = gone.id RETURNING h.created_at;

-- name: prune_logs
-- Remove the logs of runs that have ended before the floor.
DELETE FROM perdure.run_logs l USING (
    SELECT p.run, p.start
    FROM unnest($1::uuid[], $2::bigint[]) AS f (session, floor)
    CROSS JOIN LATERAL (
        SELECT coalesce((SELECT e.run FROM perdure.events e WHERE e.session = f.session AND e.seq > f.floor
                         AND e.run IS NOT NULL ORDER BY e.seq LIMIT 1), 2147483647) AS first
    ) kept
    JOIN perdure.runs r ON r.session = f.session AND r.number < kept.first AND r.ended_at < $3::bigint
    JOIN perdure.run_logs p ON p.run = r.id LIMIT $4
) gone
WHERE l.run = gone.run AND l.start = gone.start RETURNING l.start;

-- name: prune_runs
-- Remove runs that have ended before the floor.
DELETE FROM perdure.runs r USING (
    SELECT o.session, o.number
    FROM unnest($1::uuid[], $2::bigint[]) AS f (session, floor)
    CROSS JOIN LATERAL (
        SELECT coalesce((SELECT e.run FROM perdure.events e WHERE e.session = f.session AND e.seq > f.floor
                         AND e.run IS NOT NULL ORDER BY e.seq LIMIT 1), 2147483647) AS first
    ) kept
    JOIN perdure.runs o ON o.session = f.session AND o.number < kept.first AND o.ended_at < $3::bigint LIMIT $4
) gone
WHERE r.session = gone.session AND r.number = gone.number RETURNING r.number;

-- name: prune_events
-- Remove events below the floor.
DELETE FROM perdure.events e USING (
    SELECT o.session, o.seq
    FROM unnest($1::uuid[], $2::bigint[]) AS f (session, floor)
    JOIN perdure.events o ON o.session = f.session AND o.seq <= f.floor AND $3::bigint IS NOT NULL LIMIT $4
) gone
WHERE e.session = gone.session AND e.seq = gone.seq RETURNING e.seq;

-- name: ended_sessions
-- Sessions that have ended long ago and that nothing runs in, with the lengths of their logs.
SELECT s.id, h.seq FROM perdure.sessions s JOIN perdure.heads h ON h.session = s.id
WHERE s.environment = $1 AND s.ended_at < $2 AND NOT s.owned ORDER BY s.ended_at LIMIT $3;

-- name: forget_session
-- Remove the last of a session, whose head is locked.
DELETE FROM perdure.sessions WHERE id = $1 AND ended_at IS NOT NULL AND NOT owned RETURNING id;

-- name: forget_head
-- Remove a session's head.
DELETE FROM perdure.heads WHERE session = $1 RETURNING session;

-- name: forget_rows
-- Remove what nothing else has removed of a session.
WITH holds AS (DELETE FROM perdure.holds WHERE session = $1),
     live AS (DELETE FROM perdure.live WHERE session = $1),
     asks AS (DELETE FROM perdure.asks WHERE session = $1),
     messages AS (DELETE FROM perdure.messages WHERE session = $1),
     steps AS (DELETE FROM perdure.steps WHERE session = $1),
     memos AS (DELETE FROM perdure.memos WHERE session = $1),
     logs AS (DELETE FROM perdure.run_logs l USING perdure.runs r WHERE r.session = $1 AND l.run = r.id),
     runs AS (DELETE FROM perdure.runs WHERE session = $1),
     turns AS (DELETE FROM perdure.turns WHERE session = $1)
DELETE FROM perdure.events WHERE session = $1 RETURNING seq;

-- name: prune_receipts
-- Remove old receipts, the oldest first: their index leads to them, past what earlier batches have left behind.
DELETE FROM perdure.idempotency WHERE scope = ANY (ARRAY(
    SELECT scope FROM perdure.idempotency WHERE environment = $1 AND environment <> '' AND at < $2 ORDER BY at LIMIT $3
)) RETURNING at;
