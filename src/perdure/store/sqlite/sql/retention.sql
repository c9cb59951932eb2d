-- name: retention
-- For how long an environment keeps what has ended.
SELECT keep_events, keep_sessions, keep_receipts FROM environments WHERE id = ?1;

-- name: set_retention
-- Set for how long an environment keeps what has ended.
UPDATE environments SET keep_events = ?2, keep_sessions = ?3, keep_receipts = ?4 WHERE id = ?1 RETURNING id;

-- name: oldest_commits
-- The oldest commits of an environment's feed behind a number, with their times.
SELECT number, at, ranges FROM commits WHERE environment = ?1 AND number > ?2 ORDER BY number LIMIT ?3;

-- name: raise_feed_floor
-- Up to this number the feed is gone.
UPDATE environments SET floor = ?2 WHERE id = ?1 AND floor < ?2;

-- name: drop_commits
-- Remove commits from the feed. The newest always stays, so that numbers never come again.
DELETE FROM commits WHERE environment = ?1 AND number <= ?2
AND number < (SELECT max(number) FROM commits WHERE environment = ?1);

-- name: prune_turns
-- Remove turns whose input is below the floor; their inputs are in order, so that the first tells whether there are any.
DELETE FROM turns WHERE pos IN (
    SELECT pos FROM (
        SELECT pos, queued_seq FROM turns WHERE pos > ?1 AND pos <= ?1 + 4294967295 ORDER BY pos LIMIT CASE
            WHEN (SELECT queued_seq FROM turns WHERE pos > ?1 ORDER BY pos LIMIT 1) <= ?2 THEN ?4 ELSE 0 END
    )
    WHERE queued_seq <= ?2 AND ?3 IS NOT NULL
);

-- name: prune_asks
-- Remove questions of turns that are gone.
DELETE FROM asks WHERE rowid IN (
    SELECT id FROM (SELECT rowid AS id, turn FROM asks WHERE sid = ?1 >> 32 ORDER BY asks.id LIMIT ?4)
    WHERE NOT EXISTS (SELECT 1 FROM turns WHERE pos = ?1 + turn) AND ?2 IS NOT NULL AND ?3 IS NOT NULL
);

-- name: prune_messages
-- Remove steering messages to turns that are gone.
DELETE FROM messages WHERE rowid IN (
    SELECT id FROM (SELECT rowid AS id, turn FROM messages WHERE sid = ?1 >> 32 ORDER BY messages.id LIMIT ?4)
    WHERE NOT EXISTS (SELECT 1 FROM turns WHERE pos = ?1 + turn) AND ?2 IS NOT NULL AND ?3 IS NOT NULL
);

-- name: prune_steps
-- Remove the steps of turns that are gone: all of a turn's at once.
DELETE FROM steps WHERE pos IN (
    SELECT old FROM (SELECT pos AS old FROM steps WHERE pos > ?1 AND pos <= ?1 + 4294967295 ORDER BY pos LIMIT ?4)
    WHERE NOT EXISTS (SELECT 1 FROM turns WHERE pos = old) AND ?2 IS NOT NULL AND ?3 IS NOT NULL
);

-- name: prune_memos
-- Remove the memos of turns that are gone: all of a turn's at once.
DELETE FROM memos WHERE pos IN (
    SELECT old FROM (SELECT pos AS old FROM memos WHERE pos > ?1 AND pos <= ?1 + 4294967295 ORDER BY pos LIMIT ?4)
    WHERE NOT EXISTS (SELECT 1 FROM turns WHERE pos = old) AND ?2 IS NOT NULL AND ?3 IS NOT NULL
);

-- name: prune_holds
-- Remove holds that were released long ago.
DELETE FROM holds WHERE sid = ?1 >> 32 AND id IN (
    SELECT id FROM holds WHERE sid = ?1 >> 32 AND released_at < ?3 AND ?2 IS NOT NULL LIMIT ?4
);

-- name: prune_logs
-- Remove the logs of runs that have ended before the floor.
DELETE FROM run_logs WHERE rowid IN (
    SELECT l.rowid FROM runs r JOIN run_logs l ON l.run = r.id
    WHERE r.pos > ?1 AND r.pos < ?1 + coalesce((
        SELECT run FROM events WHERE pos > ?1 + ?2 AND pos <= ?1 + 4294967295 AND run IS NOT NULL ORDER BY pos LIMIT 1
    ), 4294967295) AND r.ended_at < ?3 LIMIT ?4
);

-- name: prune_runs
-- Remove runs that have ended before the floor.
DELETE FROM runs WHERE pos IN (
    SELECT r.pos FROM runs r WHERE r.pos > ?1 AND r.pos < ?1 + coalesce((
        SELECT run FROM events WHERE pos > ?1 + ?2 AND pos <= ?1 + 4294967295 AND run IS NOT NULL ORDER BY pos LIMIT 1
    ), 4294967295) AND r.ended_at < ?3 LIMIT ?4
);

-- name: prune_events
-- Remove events below the floor.
DELETE FROM events WHERE pos IN (
    SELECT pos FROM events WHERE pos > ?1 AND pos <= ?1 + ?2 AND ?3 IS NOT NULL ORDER BY pos LIMIT ?4
);

-- name: ended_sessions
-- Sessions that have ended long ago and that nothing runs in.
SELECT id FROM sessions WHERE environment = ?1 AND ended_at < ?2 AND owned = 0 ORDER BY ended_at LIMIT ?3;

-- name: forget_session
-- Remove the last of a session.
DELETE FROM sessions WHERE id = ?1 AND ended_at IS NOT NULL AND owned = 0 RETURNING sid;

-- name: forget_head
-- Remove a session's head.
DELETE FROM heads WHERE sid = ?1;

-- name: forget_holds
-- Remove a session's holds.
DELETE FROM holds WHERE sid = ?1;

-- name: forget_asks
-- Remove a session's questions.
DELETE FROM asks WHERE sid = ?1;

-- name: forget_messages
-- Remove a session's steering messages.
DELETE FROM messages WHERE sid = ?1;

-- name: forget_steps
-- Remove a session's steps.
DELETE FROM steps WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32;

-- name: forget_memos
-- Remove a session's memos.
DELETE FROM memos WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32;

-- name: forget_logs
-- Remove the logs of a session's runs.
DELETE FROM run_logs WHERE run IN (SELECT id FROM runs WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32);

-- name: forget_runs
-- Remove a session's runs.
DELETE FROM runs WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32;

-- name: forget_turns
-- Remove a session's turns.
DELETE FROM turns WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32;

-- name: forget_events
-- Remove a session's events.
DELETE FROM events WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32;

-- name: prune_receipts
-- Remove old receipts.
DELETE FROM idempotency WHERE scope IN (
    SELECT scope FROM idempotency WHERE environment = ?1 AND environment <> '' AND at < ?2 LIMIT ?3
);
