-- name: insert_event
-- Append to a session's log.
INSERT INTO events (pos, type, at, turn, run, op, data) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: events
-- A range of a session's log, with the ids of turns and runs.
SELECT e.pos, e.type, e.at, e.data, t.id, r.id
FROM events e
LEFT JOIN turns t ON t.pos = e.pos - (e.pos & 4294967295) + e.turn
LEFT JOIN runs r ON r.pos = e.pos - (e.pos & 4294967295) + e.run
WHERE e.pos > ?1 AND e.pos <= ?2
ORDER BY e.pos LIMIT ?3;

-- name: output_position
-- Where a write of a turn was logged, looked for from the newest event back to the turn's start.
SELECT pos FROM events WHERE pos > ?1 AND pos <= ?2 AND turn = ?3 AND op = ?4 ORDER BY pos DESC LIMIT 1;

-- name: insert_turn
-- A new turn, which may have started in the same commit.
INSERT INTO turns (pos, id, status, queued_seq, created_at, run, started_at) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: start_turn
-- A queued turn is running.
UPDATE turns SET status = ?2, run = ?3, started_at = ?4 WHERE pos = ?1;

-- name: end_turn
-- A turn has reached its end.
UPDATE turns SET status = ?2, ended_seq = ?3, ended_at = ?4, reason = ?5 WHERE pos = ?1;

-- name: turns
-- Turns of a range, in order, with the events that hold their input and their outcome.
SELECT t.pos, t.id, t.status, q.data, t.created_at, e.data, t.reason, r.id, t.started_at, t.ended_at
FROM turns t
JOIN events q ON q.pos = t.pos - (t.pos & 4294967295) + t.queued_seq
LEFT JOIN events e ON e.pos = t.pos - (t.pos & 4294967295) + t.ended_seq
LEFT JOIN runs r ON r.pos = t.pos - (t.pos & 4294967295) + t.run
WHERE t.pos > ?1 AND t.pos <= ?2
ORDER BY t.pos LIMIT ?3;

-- name: turn_position
-- Where a turn is stored.
SELECT pos FROM turns WHERE id = ?1;

-- name: queued_seq
-- The event that queued a turn.
SELECT queued_seq FROM turns WHERE pos = ?1;
