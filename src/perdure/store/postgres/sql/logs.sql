-- name: append_log
-- A piece of a run's log; the longer one stays where two begin at one byte.
INSERT INTO perdure.run_logs AS l (run, start, data) VALUES ($1, $2, $3)
ON CONFLICT (run, start) DO UPDATE SET data = excluded.data WHERE octet_length(excluded.data) > octet_length(l.data);

-- name: read_log
-- Pieces of a run's log that begin in a range, in order.
SELECT start, data FROM perdure.run_logs WHERE run = $1 AND start > $2 AND start < $3 ORDER BY start;
