-- name: api_keys
-- All API keys.
SELECT id, name, sha256, created_at, ended_at FROM api_keys ORDER BY created_at, id;

-- name: put_api_key
-- A new API key; one that exists stays as it is.
INSERT INTO api_keys (id, name, sha256, created_at, ended_at) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING;

-- name: end_api_key
-- End an API key that has not ended.
UPDATE api_keys SET ended_at = ?2 WHERE id = ?1 AND ended_at IS NULL RETURNING id;
