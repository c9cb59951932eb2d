-- name: begin
-- Whatever the server's defaults are: each statement sees what was committed before it, and a standby is refused at once.
BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE;

-- name: begin_reading
-- All statements see one instant.
BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: commit
-- Done.
COMMIT;

-- name: rollback
-- Undone.
ROLLBACK;

-- name: bounds
-- For this transaction only, since a pooler may give the session to somebody else: a process that stands still holds its
-- locks for a moment and no longer, and whoever acknowledges has flushed, whatever the server's default is.
SELECT set_config('idle_in_transaction_session_timeout', $1, true),
       set_config('lock_timeout', $2, true),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                        ELSE current_setting('synchronous_commit') END, true);

-- name: mark_batch
-- The number of this commit, and what time it is. From here on no statement is timed: a commit that waits for a standby
-- would be acknowledged when its time is over, although the standby has not got it.
INSERT INTO perdure.writers (id, lane, batch, seen_at) VALUES ($1, $2, $3, clock_timestamp())
ON CONFLICT (id, lane) DO UPDATE SET batch = excluded.batch, seen_at = excluded.seen_at
RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, set_config('statement_timeout', '0', true);

-- name: newest_batch
-- The newest commit of a lane; waits for one that is under way, even if it is the first. It writes, so that its own
-- commit is only acknowledged where all before it are safe: one that a standby has not got yet can already be read here.
INSERT INTO perdure.writers (id, lane, batch, seen_at) VALUES ($1, $2, 0, clock_timestamp())
ON CONFLICT (id, lane) DO UPDATE SET seen_at = excluded.seen_at
RETURNING batch, set_config('statement_timeout', '0', true);

-- name: forget_writer
-- A process has ended, or has not been heard of for a week.
DELETE FROM perdure.writers WHERE id = $1 OR seen_at < clock_timestamp() - interval '7 days';
