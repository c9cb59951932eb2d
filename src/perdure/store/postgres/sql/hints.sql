-- name: listen
-- Hear of other processes' commits.
LISTEN perdure;

-- name: notify
-- Tell other processes of commits, after them and outside of them: a commit that notifies holds up all others that do.
SELECT pg_notify('perdure', said) FROM unnest($1::text[]) AS said;
