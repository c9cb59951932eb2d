-- name: api_keys
-- All API keys.
SELECT id, name, sha256, created_at, ended_at FROM perdure.api_keys ORDER BY created_at, id;

-- name: put_api_key
-- A new API key; one that exists stays as it is.
INSERT INTO perdure.api_keys (id, name, sha256, created_at, ended_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING RETURNING id;

-- name: end_api_key
-- End an API key, and tell since when it has been at an end.
WITH ended AS (UPDATE perdure.api_keys SET ended_at = $2 WHERE id = $1 AND ended_at IS NULL RETURNING ended_at)
SELECT ended_at FROM ended
UNION ALL SELECT ended_at FROM perdure.api_keys WHERE id = $1 AND ended_at IS NOT NULL;
