-- name: environment
-- One environment.
SELECT id, current_deployment, created_at FROM environments WHERE id = ?1;

-- name: environments
-- All environments.
SELECT id, current_deployment, created_at FROM environments ORDER BY id;

-- name: insert_environment
-- A new environment; one that exists stays as it is.
INSERT INTO environments (id, created_at) VALUES (?1, ?2) ON CONFLICT DO NOTHING;

-- name: insert_deployment
-- A new deployment.
INSERT INTO deployments (id, environment, digest, created_at, source, live, agents) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: promote
-- Make a deployment current.
UPDATE environments SET current_deployment = ?2 WHERE id = ?1;

-- name: deployment
-- One deployment.
SELECT id, environment, digest, created_at, source, agents, live FROM deployments WHERE id = ?1;

-- name: deployment_by_digest
-- The deployment of a digest in an environment.
SELECT id, environment, digest, created_at, source, agents, live FROM deployments
WHERE environment = ?1 AND digest = ?2;

-- name: deployments
-- An environment's deployments, newest first.
SELECT id, environment, digest, created_at, source, agents, live FROM deployments
WHERE environment = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3;

-- name: insert_archive
-- The source of a digest; one that exists stays as it is.
INSERT INTO archives (digest, data) VALUES (?1, ?2) ON CONFLICT DO NOTHING;

-- name: archive
-- The source of a deployment.
SELECT a.data FROM deployments d JOIN archives a ON a.digest = d.digest WHERE d.id = ?1;
