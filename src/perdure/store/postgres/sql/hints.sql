-- name: listen
-- Hear of other processes' commits.
LISTEN perdure;

-- name: notify
-- Tell other processes of commits, after them and outside of them: a commit that notifies holds up all others that do.
-- Nobody waits for the disk or for a standby: what is told has happened long since, and a hint may be lost.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('perdure', said) FROM unnest($1::text[]) AS said;
