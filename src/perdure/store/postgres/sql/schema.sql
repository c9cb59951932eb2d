-- name: has_schema
-- Whether this database has a store. Read from the tables, because to_regclass() answers from a cache that may be older
-- than the lock.
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'perdure' AND c.relname = 'migrations'),
       EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'perdure');

-- name: lock_schema
-- One migrates at a time; held until the transaction ends.
SELECT pg_advisory_xact_lock(7305808869231650657);

-- name: applied
-- The migrations that were done.
SELECT number, phase FROM perdure.migrations;

-- name: insert_migration
-- A migration is done.
INSERT INTO perdure.migrations (number, phase) VALUES ($1, $2);
