-- name: lock_heads
-- Heads, locked in one order everywhere, so that nobody waits in a circle.
SELECT session, body, live, mark FROM perdure.heads WHERE session = ANY($1::uuid[]) ORDER BY session FOR UPDATE;

-- name: heads
-- Some heads.
SELECT body FROM perdure.heads WHERE session = ANY($1::uuid[]);

-- name: changed
-- Heads of those of some sessions whose logs are longer than was known.
SELECT h.body FROM unnest($1::uuid[], $2::bigint[]) AS known (session, seq)
JOIN perdure.heads h ON h.session = known.session WHERE h.seq > known.seq;

-- name: head
-- One head.
SELECT body FROM perdure.heads WHERE session = $1;

-- name: find_keys
-- The sessions that have some keys.
SELECT s.environment, s.agent, s.key, s.id
FROM perdure.sessions s
JOIN unnest($1::text[], $2::text[], $3::text[]) AS asked (environment, agent, key)
  ON s.environment = asked.environment AND s.key = asked.key AND s.agent = asked.agent;

-- name: find_key
-- The session that has a key.
SELECT id FROM perdure.sessions WHERE environment = $1 AND agent = $2 AND key = $3;

-- name: list_by_key
-- Heads of the sessions that have a key, one an agent, newest first.
SELECT h.body FROM perdure.sessions s JOIN perdure.heads h ON h.session = s.id
WHERE s.environment = $1 AND s.key = $2 AND s.id < $3
ORDER BY s.id DESC;

-- name: list_by_status
-- Heads of an environment's sessions of one status, newest first.
SELECT h.body FROM perdure.sessions s JOIN perdure.heads h ON h.session = s.id
WHERE s.environment = $1 AND s.status = $2 AND s.id < $3
ORDER BY s.id DESC LIMIT $4;

-- name: list_by_agent
-- Heads of an agent's sessions of one status, newest first.
SELECT h.body FROM perdure.sessions s JOIN perdure.heads h ON h.session = s.id
WHERE s.environment = $1 AND s.status = $2 AND s.id < $3 AND s.agent = $5
ORDER BY s.id DESC LIMIT $4;

-- name: due
-- Sessions whose wake time has come, earliest first.
SELECT id, wake_at FROM perdure.sessions WHERE wake_at <= $1 ORDER BY wake_at, id LIMIT $2;

-- name: maybe_owned
-- Heads of sessions that have a run or may start one, which are those that can need an owner.
SELECT h.body FROM perdure.sessions s JOIN perdure.heads h ON h.session = s.id
WHERE s.owned AND s.id > $1
ORDER BY s.id LIMIT $2;

-- name: insert_sessions
-- New sessions' indexed columns.
INSERT INTO perdure.sessions (id, environment, agent, key, status, wake_at, owned, ended_at, worker, home)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::boolean[],
                     $8::bigint[], $9::text[], $10::text[]);

-- name: update_sessions
-- The indexed columns of sessions that change.
UPDATE perdure.sessions s
SET status = v.status, wake_at = v.wake_at, owned = v.owned, ended_at = v.ended_at, worker = v.worker, home = v.home
FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::boolean[], $5::bigint[], $6::text[], $7::text[])
  AS v (id, status, wake_at, owned, ended_at, worker, home)
WHERE s.id = v.id;

-- name: put_heads
-- Heads' newest bodies, with this transaction's mark, which is $5 at least.
INSERT INTO perdure.heads (session, live, body, seq, mark)
SELECT *, greatest(pg_current_xact_id()::text::bigint << 16, $5::bigint)
FROM unnest($1::uuid[], $2::boolean[], $3::bytea[], $4::bigint[])
ON CONFLICT (session) DO UPDATE
SET live = excluded.live, body = excluded.body, seq = excluded.seq, mark = excluded.mark;

-- name: clear_live
-- Remove sessions' live slots.
DELETE FROM perdure.live WHERE session = ANY($1::uuid[]);

-- name: put_live
-- Overwrite live slots.
INSERT INTO perdure.live (session, slot, turn, at, content)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::bigint[], $5::bytea[])
ON CONFLICT (session, slot) DO UPDATE SET turn = excluded.turn, at = excluded.at, content = excluded.content;

-- name: live
-- A session's live slots.
SELECT l.slot, t.id, l.content, l.at FROM perdure.live l
LEFT JOIN perdure.turns t ON t.session = l.session AND t.number = l.turn
WHERE l.session = $1 ORDER BY l.slot;

-- name: find_receipts
-- The requests and the receipts that idempotency keys stand for.
SELECT scope, request, receipt FROM perdure.idempotency WHERE scope = ANY($1::bytea[]);

-- name: find_receipt
-- The request and the receipt that an idempotency key stands for.
SELECT request, receipt FROM perdure.idempotency WHERE scope = $1;

-- name: insert_receipts
-- Remember receipts.
INSERT INTO perdure.idempotency (scope, request, receipt, environment, at)
SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::text[], $5::bigint[]);
