-- name: move_environments
-- Environments, all of them.
SELECT id, current_deployment, created_at, keep_events, keep_sessions, keep_receipts FROM environments ORDER BY id;

-- name: move_deployments
-- Deployments in order.
SELECT id, environment, digest, created_at, source, live, agents FROM deployments WHERE id > ?1 ORDER BY id LIMIT ?2;

-- name: move_archives
-- Sources in order.
SELECT digest, data FROM archives WHERE digest > ?1 ORDER BY digest LIMIT ?2;

-- name: move_api_keys
-- API keys in order.
SELECT id, name, sha256, created_at, ended_at FROM api_keys WHERE id > ?1 ORDER BY id LIMIT ?2;

-- name: move_receipts
-- Receipts in order.
SELECT scope, request, receipt, environment, at FROM idempotency WHERE scope > ?1 ORDER BY scope LIMIT ?2;

-- name: move_sessions
-- Sessions in order.
SELECT s.id, h.body, s.sid FROM sessions s JOIN heads h ON h.sid = s.sid WHERE s.id > ?1 ORDER BY s.id LIMIT ?2;

-- name: move_columns
-- The indexed columns of sessions, in order.
SELECT id, environment, agent, key, status, wake_at, owned, ended_at FROM sessions WHERE id > ?1 ORDER BY id LIMIT ?2;

-- name: move_events
-- A session's log.
SELECT pos, type, at, turn, run, op, data FROM events WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32 ORDER BY pos;

-- name: move_turns
-- A session's turns.
SELECT pos, id, status, queued_seq, created_at, run, started_at, ended_seq, ended_at, reason FROM turns
WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32 ORDER BY pos;

-- name: move_runs
-- A session's runs.
SELECT pos, id, recovery, deployment, started_at, ended_at, end_reason FROM runs
WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32 ORDER BY pos;

-- name: move_holds
-- A session's holds.
SELECT id, reason, issuer_kind, issuer_id, message, created_at, released_at FROM holds WHERE sid = ?1 ORDER BY id;

-- name: move_asks
-- A session's questions.
SELECT id, turn, status, created_at, ended_at, response_id, responder_kind, responder_id, control, prompt, answer
FROM asks WHERE sid = ?1 ORDER BY id;

-- name: move_messages
-- A session's steering messages.
SELECT id, turn, status, created_at, reason, content FROM messages WHERE sid = ?1 ORDER BY id;

-- name: move_steps
-- A session's steps.
SELECT pos, name, replay, status, request, run, attempts, started_at, ended_seq FROM steps
WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32 ORDER BY pos, name;

-- name: move_memos
-- A session's memos.
SELECT pos, name, value FROM memos WHERE pos > ?1 << 32 AND pos < (?1 + 1) << 32 ORDER BY pos, name;

-- name: move_live
-- A session's live slots.
SELECT slot, turn, at, content FROM live WHERE sid = ?1 ORDER BY slot;

-- name: move_logs
-- Pieces of logs in order.
SELECT run, start, data FROM run_logs WHERE (run, start) > (?1, ?2) ORDER BY run, start LIMIT ?3;

-- name: move_commits
-- Commits of the feed in order, those below its floor left out.
SELECT environment, number, at, ranges FROM commits c WHERE (environment, number) > (?1, ?2)
AND number > coalesce((SELECT floor FROM environments e WHERE e.id = c.environment), 0)
ORDER BY environment, number LIMIT ?3;

-- name: insert_moved_environment
-- An environment.
INSERT INTO environments (id, current_deployment, created_at, keep_events, keep_sessions, keep_receipts)
VALUES (?, ?, ?, ?, ?, ?);

-- name: insert_moved_turn
-- A turn.
INSERT INTO turns (pos, id, status, queued_seq, created_at, run, started_at, ended_seq, ended_at, reason)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: count_environments
-- How many there are.
SELECT count(*) FROM environments;

-- name: count_deployments
-- How many there are.
SELECT count(*) FROM deployments;

-- name: count_archives
-- How many there are.
SELECT count(*) FROM archives;

-- name: count_api_keys
-- How many there are.
SELECT count(*) FROM api_keys;

-- name: count_receipts
-- How many there are.
SELECT count(*) FROM idempotency;

-- name: count_sessions
-- How many there are.
SELECT count(*) FROM heads;

-- name: count_events
-- How many there are.
SELECT count(*) FROM events;

-- name: count_turns
-- How many there are.
SELECT count(*) FROM turns;

-- name: count_runs
-- How many there are.
SELECT count(*) FROM runs;

-- name: count_holds
-- How many there are.
SELECT count(*) FROM holds;

-- name: count_asks
-- How many there are.
SELECT count(*) FROM asks;

-- name: count_messages
-- How many there are.
SELECT count(*) FROM messages;

-- name: count_steps
-- How many there are.
SELECT count(*) FROM steps;

-- name: count_memos
-- How many there are.
SELECT count(*) FROM memos;

-- name: count_live
-- How many there are.
SELECT count(*) FROM live;

-- name: count_logs
-- How many there are.
SELECT count(*) FROM run_logs;
