-- name: environment
-- One environment.
SELECT id, current_deployment, created_at FROM perdure.environments WHERE id = $1;

-- name: environments
-- All environments.
SELECT id, current_deployment, created_at FROM perdure.environments ORDER BY id;

-- name: insert_environment
-- A new environment; one that exists stays as it is.
INSERT INTO perdure.environments (id, created_at) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: insert_deployment
-- A new deployment; one of its digest that exists stays as it is.
INSERT INTO perdure.deployments (id, environment, digest, created_at, source, live, agents)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (environment, digest) DO NOTHING;

-- name: promote
-- Make one of an environment's deployments current.
UPDATE perdure.environments e SET current_deployment = d.id
FROM perdure.deployments d WHERE d.id = $2 AND d.environment = $1 AND e.id = $1
RETURNING e.id, e.current_deployment, e.created_at;

-- name: deployment
-- One deployment.
SELECT id, environment, digest, created_at, source, agents, live FROM perdure.deployments WHERE id = $1;

-- name: deployment_by_digest
-- The deployment of a digest in an environment.
SELECT id, environment, digest, created_at, source, agents, live FROM perdure.deployments
WHERE environment = $1 AND digest = $2;

-- name: deployments
-- An environment's deployments, newest first.
SELECT id, environment, digest, created_at, source, agents, live FROM perdure.deployments
WHERE environment = $1 AND id < $2 ORDER BY id DESC LIMIT $3;

-- name: insert_archive
-- The source of a digest; one that exists stays as it is.
INSERT INTO perdure.archives (digest, data) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: archive
-- The source of a deployment.
SELECT a.data FROM perdure.deployments d JOIN perdure.archives a ON a.digest = d.digest WHERE d.id = $1;
