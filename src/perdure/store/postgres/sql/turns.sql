-- name: insert_events
-- Append to sessions' logs.
INSERT INTO perdure.events (session, seq, type, at, turn, run, op, data)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::integer[], $6::integer[], $7::integer[],
                     $8::bytea[]);

-- name: events
-- A range of a session's log, with the ids of turns and runs: at least one event, else no more bytes than asked for.
SELECT e.seq, e.type, e.at, e.data, t.id, r.id
FROM (
    SELECT p.*, sum(octet_length(p.data)) OVER (ORDER BY p.seq ROWS UNBOUNDED PRECEDING) AS size,
           row_number() OVER (ORDER BY p.seq) AS place
    FROM (SELECT * FROM perdure.events WHERE session = $1 AND seq > $2 ORDER BY seq LIMIT $3) p
) e
LEFT JOIN perdure.turns t ON t.session = e.session AND t.number = e.turn
LEFT JOIN perdure.runs r ON r.session = e.session AND r.number = e.run
WHERE e.place = 1 OR e.size <= $4
ORDER BY e.seq;

-- name: output_position
-- Where a write of a turn was logged, looked for from the newest event back to the turn's start.
SELECT seq FROM perdure.events WHERE session = $1 AND seq > $2 AND turn = $3 AND op = $4 ORDER BY seq DESC LIMIT 1;

-- name: insert_turns
-- New turns, which may have started in the same commit.
INSERT INTO perdure.turns (session, number, id, status, queued_seq, created_at, run, started_at, ended_seq, ended_at,
                           reason)
SELECT * FROM unnest($1::uuid[], $2::integer[], $3::uuid[], $4::text[], $5::bigint[], $6::bigint[], $7::integer[],
                     $8::bigint[], $9::bigint[], $10::bigint[], $11::text[]);

-- name: start_turns
-- Queued turns are running.
UPDATE perdure.turns t SET status = 'running', run = v.run, started_at = v.at
FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::bigint[]) AS v (session, number, run, at)
WHERE t.session = v.session AND t.number = v.number;

-- name: end_turns
-- Turns have reached their end.
UPDATE perdure.turns t SET status = v.status, ended_seq = v.ended_seq, ended_at = v.at, reason = v.reason
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::bigint[], $5::bigint[], $6::text[])
  AS v (session, number, status, ended_seq, at, reason)
WHERE t.session = v.session AND t.number = v.number;

-- name: turns
-- Turns in order, with the events that hold their input and their outcome.
SELECT t.number, t.id, t.status, q.data, t.created_at, e.data, t.reason, r.id, t.started_at, t.ended_at
FROM perdure.turns t
JOIN perdure.events q ON q.session = t.session AND q.seq = t.queued_seq
LEFT JOIN perdure.events e ON e.session = t.session AND e.seq = t.ended_seq
LEFT JOIN perdure.runs r ON r.session = t.session AND r.number = t.run
WHERE t.session = $1 AND t.number > $2
ORDER BY t.number LIMIT $3;

-- name: newest_turns
-- The newest turns, the last one first.
SELECT t.number, t.id, t.status, q.data, t.created_at, e.data, t.reason, r.id, t.started_at, t.ended_at
FROM perdure.turns t
JOIN perdure.events q ON q.session = t.session AND q.seq = t.queued_seq
LEFT JOIN perdure.events e ON e.session = t.session AND e.seq = t.ended_seq
LEFT JOIN perdure.runs r ON r.session = t.session AND r.number = t.run
WHERE t.session = $1
ORDER BY t.number DESC LIMIT $2;

-- name: turn
-- One turn by its number.
SELECT t.number, t.id, t.status, q.data, t.created_at, e.data, t.reason, r.id, t.started_at, t.ended_at
FROM perdure.turns t
JOIN perdure.events q ON q.session = t.session AND q.seq = t.queued_seq
LEFT JOIN perdure.events e ON e.session = t.session AND e.seq = t.ended_seq
LEFT JOIN perdure.runs r ON r.session = t.session AND r.number = t.run
WHERE t.session = $1 AND t.number = $2;

-- name: turn_by_id
-- One turn by its id.
SELECT t.number, t.id, t.status, q.data, t.created_at, e.data, t.reason, r.id, t.started_at, t.ended_at
FROM perdure.turns t
JOIN perdure.events q ON q.session = t.session AND q.seq = t.queued_seq
LEFT JOIN perdure.events e ON e.session = t.session AND e.seq = t.ended_seq
LEFT JOIN perdure.runs r ON r.session = t.session AND r.number = t.run
WHERE t.session = $1 AND t.id = $2;

-- name: queued_seq
-- The event that queued a turn.
SELECT queued_seq FROM perdure.turns WHERE session = $1 AND number = $2;
