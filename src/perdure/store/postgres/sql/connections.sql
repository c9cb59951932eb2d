-- name: who_serves
-- The process of the server behind a connection: another than it said at first, if there is a pooler in between.
SELECT pg_backend_pid();
