-- name: put_step
-- A step, begun or ended.
REPLACE INTO steps (pos, name, replay, status, request, run, attempts, started_at, ended_seq)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: step
-- One step, with the event that holds its outcome. The event's position is the session's, and its number.
SELECT s.name, s.replay, s.status, s.request, s.run, s.attempts, s.started_at, s.ended_seq, e.data
FROM steps s LEFT JOIN events e ON e.pos = (?1 / 4294967296) * 4294967296 + s.ended_seq
WHERE s.pos = ?1 AND s.name = ?2;

-- name: put_memo
-- A value that is kept.
INSERT INTO memos (pos, name, value) VALUES (?, ?, ?);

-- name: memo
-- A value that was kept.
SELECT value FROM memos WHERE pos = ?1 AND name = ?2;
