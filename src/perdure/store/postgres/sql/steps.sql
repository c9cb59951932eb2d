-- name: put_step
-- A step, begun or ended.
INSERT INTO perdure.steps (session, turn, name, replay, status, request, run, attempts, started_at, ended_seq)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (session, turn, name) DO UPDATE SET
    status = excluded.status, run = excluded.run, attempts = excluded.attempts, ended_seq = excluded.ended_seq;

-- name: step
-- One step, with the event that holds its outcome.
SELECT s.name, s.replay, s.status, s.request, s.run, s.attempts, s.started_at, s.ended_seq, e.data
FROM perdure.steps s LEFT JOIN perdure.events e ON e.session = s.session AND e.seq = s.ended_seq
WHERE s.session = $1 AND s.turn = $2 AND s.name = $3;

-- name: put_memo
-- A value that is kept.
INSERT INTO perdure.memos (session, turn, name, value) VALUES ($1, $2, $3, $4);

-- name: memo
-- A value that was kept.
SELECT value FROM perdure.memos WHERE session = $1 AND turn = $2 AND name = $3;
