-- name: put_run
-- A new run.
INSERT INTO perdure.runs (session, number, id, recovery, deployment, started_at, ended_at, end_reason)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: end_run
-- A run has ended.
UPDATE perdure.runs SET ended_at = $3, end_reason = $4 WHERE session = $1 AND number = $2;

-- name: runs
-- Runs in order.
SELECT number, id, recovery, deployment, started_at, ended_at, end_reason FROM perdure.runs
WHERE session = $1 AND number > $2 ORDER BY number LIMIT $3;

-- name: run
-- One run by its id.
SELECT number, id, recovery, deployment, started_at, ended_at, end_reason FROM perdure.runs
WHERE session = $1 AND id = $2;

-- name: put_hold
-- A hold, placed or released.
INSERT INTO perdure.holds (session, id, reason, issuer_kind, issuer_id, message, created_at, released_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (session, id) DO UPDATE SET released_at = excluded.released_at;

-- name: hold
-- One hold.
SELECT id, reason, issuer_kind, issuer_id, created_at, message, released_at FROM perdure.holds
WHERE session = $1 AND id = $2;

-- name: put_ask
-- A question, asked or answered.
INSERT INTO perdure.asks (session, id, turn, status, created_at, ended_at, response_id, responder_kind, responder_id,
                          control, prompt, answer)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (session, id) DO UPDATE SET
    status = excluded.status, ended_at = excluded.ended_at, response_id = excluded.response_id,
    responder_kind = excluded.responder_kind, responder_id = excluded.responder_id, answer = excluded.answer;

-- name: end_ask
-- A pending question is cancelled.
UPDATE perdure.asks SET status = 'cancelled', ended_at = $3 WHERE session = $1 AND id = $2;

-- name: ask
-- One question.
SELECT a.id, a.turn, t.id, a.status, a.prompt, a.control, a.created_at, a.answer, a.response_id, a.responder_kind,
       a.responder_id, a.ended_at
FROM perdure.asks a LEFT JOIN perdure.turns t ON t.session = a.session AND t.number = a.turn
WHERE a.session = $1 AND a.id = $2;

-- name: asks
-- A session's questions in order of id.
SELECT a.id, a.turn, t.id, a.status, a.prompt, a.control, a.created_at, a.answer, a.response_id, a.responder_kind,
       a.responder_id, a.ended_at
FROM perdure.asks a LEFT JOIN perdure.turns t ON t.session = a.session AND t.number = a.turn
WHERE a.session = $1 AND a.id > $2 ORDER BY a.id LIMIT $3;

-- name: asks_by_status
-- A session's questions of one status in order of id.
SELECT a.id, a.turn, t.id, a.status, a.prompt, a.control, a.created_at, a.answer, a.response_id, a.responder_kind,
       a.responder_id, a.ended_at
FROM perdure.asks a LEFT JOIN perdure.turns t ON t.session = a.session AND t.number = a.turn
WHERE a.session = $1 AND a.status = $4 AND a.id > $2 ORDER BY a.id LIMIT $3;

-- name: put_message
-- A steering message, admitted or changed.
INSERT INTO perdure.messages (session, id, turn, status, created_at, reason, content)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (session, id) DO UPDATE SET status = excluded.status, reason = excluded.reason;

-- name: end_message
-- A message that was not delivered is rejected.
UPDATE perdure.messages SET status = 'rejected', reason = $3 WHERE session = $1 AND id = $2;

-- name: message
-- One steering message.
SELECT m.id, m.turn, t.id, m.status, m.content, m.created_at, m.reason
FROM perdure.messages m LEFT JOIN perdure.turns t ON t.session = m.session AND t.number = m.turn
WHERE m.session = $1 AND m.id = $2;
