-- name: tables
-- The names of all tables.
SELECT name FROM sqlite_schema WHERE type = 'table';

-- name: schema_version
-- The version that the last migration has left.
SELECT version FROM schema_version;

-- name: set_schema_version
-- A migration is done; in the transaction that did it.
UPDATE schema_version SET version = ?1;
