-- name: put_run
-- A new run.
INSERT INTO runs (pos, id, recovery, deployment, started_at, ended_at, end_reason) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: end_run
-- A run has ended.
UPDATE runs SET ended_at = ?2, end_reason = ?3 WHERE pos = ?1;

-- name: runs
-- Runs of a range, in order.
SELECT pos, id, recovery, deployment, started_at, ended_at, end_reason FROM runs
WHERE pos > ?1 AND pos <= ?2 ORDER BY pos LIMIT ?3;

-- name: run
-- One run by its id.
SELECT pos, id, recovery, deployment, started_at, ended_at, end_reason FROM runs WHERE id = ?1;

-- name: put_hold
-- A hold, placed or released.
REPLACE INTO holds (sid, id, reason, issuer_kind, issuer_id, message, created_at, released_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: hold
-- One hold.
SELECT id, reason, issuer_kind, issuer_id, created_at, message, released_at FROM holds WHERE sid = ?1 AND id = ?2;

-- name: put_ask
-- A question, asked or answered.
REPLACE INTO asks
(sid, id, turn, status, created_at, ended_at, response_id, responder_kind, responder_id, control, prompt, answer)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: end_ask
-- A pending question is cancelled.
UPDATE asks SET status = 'cancelled', ended_at = ?3 WHERE sid = ?1 AND id = ?2;

-- name: ask
-- One question.
SELECT a.id, a.turn, t.id, a.status, a.prompt, a.control, a.created_at, a.answer, a.response_id, a.responder_kind,
       a.responder_id, a.ended_at
FROM asks a LEFT JOIN turns t ON t.pos = a.sid * 4294967296 + a.turn
WHERE a.sid = ?1 AND a.id = ?2;

-- name: asks
-- A session's questions in order of id.
SELECT a.id, a.turn, t.id, a.status, a.prompt, a.control, a.created_at, a.answer, a.response_id, a.responder_kind,
       a.responder_id, a.ended_at
FROM asks a LEFT JOIN turns t ON t.pos = a.sid * 4294967296 + a.turn
WHERE a.sid = ?1 AND a.id > ?2 ORDER BY a.id LIMIT ?3;

-- name: asks_by_status
-- A session's questions of one status in order of id.
SELECT a.id, a.turn, t.id, a.status, a.prompt, a.control, a.created_at, a.answer, a.response_id, a.responder_kind,
       a.responder_id, a.ended_at
FROM asks a LEFT JOIN turns t ON t.pos = a.sid * 4294967296 + a.turn
WHERE a.sid = ?1 AND a.status = ?4 AND a.id > ?2 ORDER BY a.id LIMIT ?3;

-- name: put_message
-- A steering message, admitted or changed.
REPLACE INTO messages (sid, id, turn, status, created_at, reason, content) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: end_message
-- A message that was not delivered is rejected.
UPDATE messages SET status = 'rejected', reason = ?3 WHERE sid = ?1 AND id = ?2;

-- name: message
-- One steering message.
SELECT m.id, m.turn, t.id, m.status, m.content, m.created_at, m.reason
FROM messages m LEFT JOIN turns t ON t.pos = m.sid * 4294967296 + m.turn
WHERE m.sid = ?1 AND m.id = ?2;
