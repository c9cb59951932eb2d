-- name: move_environments
-- Environments in order.
SELECT id, current_deployment, created_at, keep_events, keep_sessions, keep_receipts
FROM perdure.environments WHERE $1::text IS NULL OR id > $1 ORDER BY id LIMIT $2;

-- name: move_deployments
-- Deployments in order.
SELECT id, environment, digest, created_at, source, live, agents
FROM perdure.deployments WHERE $1::uuid IS NULL OR id > $1 ORDER BY id LIMIT $2;

-- name: move_archives
-- Sources in order.
SELECT digest, data
FROM perdure.archives WHERE $1::text IS NULL OR digest > $1 ORDER BY digest LIMIT $2;

-- name: move_api_keys
-- API keys in order.
SELECT id, name, sha256, created_at, ended_at
FROM perdure.api_keys WHERE $1::text IS NULL OR id > $1 ORDER BY id LIMIT $2;

-- name: move_receipts
-- Receipts in order.
SELECT scope, request, receipt, environment, at
FROM perdure.idempotency WHERE $1::bytea IS NULL OR scope > $1 ORDER BY scope LIMIT $2;

-- name: move_sessions
-- Heads in order.
SELECT session, body
FROM perdure.heads WHERE $1::uuid IS NULL OR session > $1 ORDER BY session LIMIT $2;

-- name: move_events
-- Events in order.
SELECT session, seq, type, at, turn, run, op, data
FROM perdure.events WHERE (session, seq) > ($1::uuid, $2::bigint) ORDER BY session, seq LIMIT $3;

-- name: move_turns
-- Turns in order.
SELECT session, number, id, status, queued_seq, created_at, run, started_at, ended_seq, ended_at, reason
FROM perdure.turns WHERE (session, number) > ($1::uuid, $2::integer) ORDER BY session, number LIMIT $3;

-- name: move_runs
-- Runs in order.
SELECT session, number, id, recovery, deployment, started_at, ended_at, end_reason
FROM perdure.runs WHERE (session, number) > ($1::uuid, $2::integer) ORDER BY session, number LIMIT $3;

-- name: move_holds
-- Holds in order.
SELECT session, id, reason, issuer_kind, issuer_id, message, created_at, released_at
FROM perdure.holds WHERE (session, id) > ($1::uuid, $2::uuid) ORDER BY session, id LIMIT $3;

-- name: move_asks
-- Questions in order.
SELECT session, id, turn, status, created_at, ended_at, response_id, responder_kind, responder_id, control, prompt,
       answer
FROM perdure.asks WHERE (session, id) > ($1::uuid, $2::uuid) ORDER BY session, id LIMIT $3;

-- name: move_messages
-- Steering messages in order.
SELECT session, id, turn, status, created_at, reason, content
FROM perdure.messages WHERE (session, id) > ($1::uuid, $2::uuid) ORDER BY session, id LIMIT $3;

-- name: move_steps
-- Steps in order.
SELECT session, turn, name, replay, status, request, run, attempts, started_at, ended_seq
FROM perdure.steps WHERE (session, turn, name) > ($1::uuid, $2::integer, $3::bytea)
ORDER BY session, turn, name LIMIT $4;

-- name: move_memos
-- Memos in order.
SELECT session, turn, name, value
FROM perdure.memos WHERE (session, turn, name) > ($1::uuid, $2::integer, $3::bytea)
ORDER BY session, turn, name LIMIT $4;

-- name: move_live
-- Live slots in order.
SELECT session, slot, turn, at, content
FROM perdure.live WHERE (session, slot) > ($1::uuid, $2::text) ORDER BY session, slot LIMIT $3;

-- name: move_logs
-- Pieces of logs in order.
SELECT run, start, data
FROM perdure.run_logs WHERE (run, start) > ($1::uuid, $2::bigint) ORDER BY run, start LIMIT $3;

-- name: move_columns
-- The indexed columns of sessions, in order.
SELECT id, environment, agent, key, status, wake_at, owned, ended_at
FROM perdure.sessions WHERE $1::uuid IS NULL OR id > $1 ORDER BY id LIMIT $2;

-- name: move_commits
-- Commits of the feed in order, those below its floor left out, with what is still there of their sessions.
SELECT c.environment, c.mark, c.xid, c.at,
       ARRAY(SELECT r.session FROM unnest(c.sessions) WITH ORDINALITY AS r (session, place)
             WHERE EXISTS (SELECT 1 FROM perdure.sessions s WHERE s.id = r.session) ORDER BY r.place),
       c.sessions, c.firsts, c.lasts
FROM perdure.commits c LEFT JOIN perdure.environments e ON e.id = c.environment
WHERE (c.environment, c.mark, c.xid) > ($1, $2::bigint, $3::bigint)
  AND (c.mark, c.xid) > (coalesce(e.floor_mark, -1), coalesce(e.floor_xid, -1))
ORDER BY c.environment, c.mark, c.xid LIMIT $4;

-- name: count_environments
-- How many there are.
SELECT count(*) FROM perdure.environments;

-- name: count_deployments
-- How many there are.
SELECT count(*) FROM perdure.deployments;

-- name: count_archives
-- How many there are.
SELECT count(*) FROM perdure.archives;

-- name: count_api_keys
-- How many there are.
SELECT count(*) FROM perdure.api_keys;

-- name: count_receipts
-- How many there are.
SELECT count(*) FROM perdure.idempotency;

-- name: count_sessions
-- How many there are.
SELECT count(*) FROM perdure.heads;

-- name: count_events
-- How many there are.
SELECT count(*) FROM perdure.events;

-- name: count_turns
-- How many there are.
SELECT count(*) FROM perdure.turns;

-- name: count_runs
-- How many there are.
SELECT count(*) FROM perdure.runs;

-- name: count_holds
-- How many there are.
SELECT count(*) FROM perdure.holds;

-- name: count_asks
-- How many there are.
SELECT count(*) FROM perdure.asks;

-- name: count_messages
-- How many there are.
SELECT count(*) FROM perdure.messages;

-- name: count_steps
-- How many there are.
SELECT count(*) FROM perdure.steps;

-- name: count_memos
-- How many there are.
SELECT count(*) FROM perdure.memos;

-- name: count_live
-- How many there are.
SELECT count(*) FROM perdure.live;

-- name: count_logs
-- How many there are.
SELECT count(*) FROM perdure.run_logs;

-- name: insert_moved_environments
-- Rows of another store.
INSERT INTO perdure.environments
       (id, current_deployment, created_at, keep_events, keep_sessions, keep_receipts)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]);

-- name: insert_moved_deployments
-- Rows of another store.
INSERT INTO perdure.deployments
       (id, environment, digest, created_at, source, live, agents)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::boolean[], $7::bytea[]);

-- name: insert_moved_archives
-- Rows of another store.
INSERT INTO perdure.archives
       (digest, data)
SELECT * FROM unnest($1::text[], $2::bytea[]);

-- name: insert_moved_api_keys
-- Rows of another store.
INSERT INTO perdure.api_keys
       (id, name, sha256, created_at, ended_at)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[]);

-- name: insert_moved_runs
-- Rows of another store.
INSERT INTO perdure.runs
       (session, number, id, recovery, deployment, started_at, ended_at, end_reason)
SELECT * FROM unnest($1::uuid[], $2::integer[], $3::uuid[], $4::text[], $5::text[], $6::bigint[], $7::bigint[],
                     $8::text[]);

-- name: insert_moved_holds
-- Rows of another store.
INSERT INTO perdure.holds
       (session, id, reason, issuer_kind, issuer_id, message, created_at, released_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bigint[],
                     $8::bigint[]);

-- name: insert_moved_asks
-- Rows of another store.
INSERT INTO perdure.asks
       (session, id, turn, status, created_at, ended_at, response_id, responder_kind, responder_id,
       control, prompt, answer)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[], $5::bigint[], $6::bigint[], $7::text[],
                     $8::text[], $9::text[], $10::bytea[], $11::bytea[], $12::bytea[]);

-- name: insert_moved_messages
-- Rows of another store.
INSERT INTO perdure.messages
       (session, id, turn, status, created_at, reason, content)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[], $5::bigint[], $6::text[], $7::bytea[]);

-- name: insert_moved_steps
-- Rows of another store.
INSERT INTO perdure.steps
       (session, turn, name, replay, status, request, run, attempts, started_at, ended_seq)
SELECT * FROM unnest($1::uuid[], $2::integer[], $3::bytea[], $4::text[], $5::text[], $6::bytea[], $7::integer[],
                     $8::integer[], $9::bigint[], $10::bigint[]);

-- name: insert_moved_memos
-- Rows of another store.
INSERT INTO perdure.memos
       (session, turn, name, value)
SELECT * FROM unnest($1::uuid[], $2::integer[], $3::bytea[], $4::bytea[]);

-- name: insert_moved_logs
-- Rows of another store.
INSERT INTO perdure.run_logs
       (run, start, data)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bytea[]);

-- name: insert_moved_commit
-- A commit of another store, in its place in this one's feed: before all that this one will ever commit.
INSERT INTO perdure.commits (environment, mark, xid, at, sessions, firsts, lasts)
VALUES ($1, $2, 0, $3, $4::uuid[], $5::bigint[], $6::bigint[]);

-- name: analyze
-- Tell the planner what a table that was filled in one go looks like.
ANALYZE perdure.sessions, perdure.heads, perdure.events, perdure.turns, perdure.runs, perdure.idempotency;

-- name: lock_all
-- Let nobody write until this transaction has ended.
LOCK TABLE perdure.heads, perdure.idempotency, perdure.environments, perdure.deployments, perdure.api_keys,
           perdure.run_logs, perdure.leases IN SHARE MODE;

-- name: in_use_by
-- Workers whose lease lasts, and processes of ours that are connected.
SELECT 'the worker ' || worker || coalesce(' at ' || address, '') FROM perdure.leases WHERE expires_at > clock_timestamp()
UNION ALL
SELECT 'a process connected from ' || coalesce(host(client_addr), 'this machine') || ' since '
       || to_char(min(backend_start) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'perdure' AND pid <> pg_backend_pid() GROUP BY client_addr;

-- name: mark_live
-- Heads of sessions that have live slots.
UPDATE perdure.heads h SET live = true WHERE EXISTS (SELECT 1 FROM perdure.live l WHERE l.session = h.session);

-- name: patient
-- This transaction takes as long as it takes, and waits for nobody's lock.
SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true),
       set_config('lock_timeout', '3s', true);
