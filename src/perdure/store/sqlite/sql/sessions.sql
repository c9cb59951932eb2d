-- name: load_head
-- Find a session by its id: its number, its head and whether it has live slots.
SELECT s.sid, h.body, EXISTS (SELECT 1 FROM live l WHERE l.sid = s.sid)
FROM sessions s JOIN heads h ON h.sid = s.sid
WHERE s.id = ?1;

-- name: sid
-- A session's number.
SELECT sid FROM sessions WHERE id = ?1;

-- name: last_sid
-- The newest session's number.
SELECT max(sid) FROM sessions;

-- name: find_key
-- The session that has a key.
SELECT id FROM sessions WHERE environment = ?1 AND agent = ?2 AND key = ?3;

-- name: list_by_key
-- Heads of the sessions that have a key, one an agent, newest first.
SELECT h.body FROM sessions s JOIN heads h ON h.sid = s.sid
WHERE s.environment = ?1 AND s.key = ?2 AND s.id < ?3
ORDER BY s.id DESC;

-- name: list_by_status
-- Heads of an environment's sessions of one status, newest first.
SELECT h.body FROM sessions s JOIN heads h ON h.sid = s.sid
WHERE s.environment = ?1 AND s.status = ?2 AND s.id < ?3
ORDER BY s.id DESC LIMIT ?4;

-- name: list_by_agent
-- Heads of an agent's sessions of one status, newest first.
SELECT h.body FROM sessions s JOIN heads h ON h.sid = s.sid
WHERE s.environment = ?1 AND s.agent = ?5 AND s.status = ?2 AND s.id < ?3
ORDER BY s.id DESC LIMIT ?4;

-- name: due
-- Sessions whose wake time has come, earliest first.
SELECT id, wake_at FROM sessions WHERE wake_at IS NOT NULL AND wake_at <= ?1 ORDER BY wake_at, id LIMIT ?2;

-- name: maybe_owned
-- Heads of sessions that have a run or may start one, which are those that can need an owner.
SELECT h.body FROM sessions s JOIN heads h ON h.sid = s.sid
WHERE s.owned = 1 AND s.id > ?1
ORDER BY s.id;

-- name: insert_session
-- A new session's indexed columns.
INSERT INTO sessions (sid, id, environment, agent, key, status, wake_at, owned, ended_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_session
-- The indexed columns of a session that change.
UPDATE sessions SET status = ?2, wake_at = ?3, owned = ?4, ended_at = ?5 WHERE sid = ?1;

-- name: put_head
-- A head's newest body.
REPLACE INTO heads (sid, body) VALUES (?, ?);

-- name: put_live
-- Overwrite a live slot.
REPLACE INTO live (sid, slot, turn, at, content) VALUES (?, ?, ?, ?, ?);

-- name: clear_live
-- Remove a session's live slots.
DELETE FROM live WHERE sid = ?;

-- name: live
-- A session's live slots.
SELECT l.slot, t.id, l.content, l.at FROM live l
LEFT JOIN turns t ON t.pos = l.sid * 4294967296 + l.turn
WHERE l.sid = ?1 ORDER BY l.slot;

-- name: find_receipt
-- The request and the receipt that an idempotency key stands for.
SELECT request, receipt FROM idempotency WHERE scope = ?1;

-- name: insert_receipt
-- Remember a receipt.
INSERT INTO idempotency (scope, request, receipt, environment, at) VALUES (?, ?, ?, ?, ?);
