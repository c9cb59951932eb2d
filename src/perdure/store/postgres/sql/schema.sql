-- name: has_schema
-- Whether this database has a store.
SELECT to_regclass('perdure.migrations') IS NOT NULL, to_regnamespace('perdure') IS NOT NULL;

-- name: lock_schema
-- One migrates at a time; held until the transaction ends.
SELECT pg_advisory_xact_lock(7305808869231650657);

-- name: applied
-- The migrations that were done.
SELECT number, phase FROM perdure.migrations;

-- name: insert_migration
-- A migration is done.
INSERT INTO perdure.migrations (number, phase) VALUES ($1, $2);
