-- name: renew_lease
-- Begin or renew a lease; one that has run out stays so.
INSERT INTO perdure.leases AS l (worker, expires_at, address, machine)
VALUES ($1, clock_timestamp() + $2::bigint * interval '1 microsecond', $3, $4)
ON CONFLICT (worker) DO UPDATE
SET expires_at = excluded.expires_at, address = excluded.address, machine = excluded.machine
WHERE l.expires_at > clock_timestamp()
RETURNING worker;

-- name: release_lease
-- Give a lease back.
UPDATE perdure.leases SET expires_at = clock_timestamp() WHERE worker = $1 AND expires_at > clock_timestamp()
RETURNING worker;

-- name: forget_leases
-- Leases that ran out long ago: whoever is not there is dead, too.
DELETE FROM perdure.leases WHERE expires_at < clock_timestamp() - interval '1 day' RETURNING worker;

-- name: alive
-- Workers whose lease lasts, and for how many microseconds.
SELECT worker, address, machine, (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint
FROM perdure.leases WHERE expires_at > clock_timestamp() ORDER BY worker;

-- name: claim_free
-- Take sessions that need an owner and have none, past those that somebody else is taking. $3 are the homes that will do.
UPDATE perdure.sessions s SET worker = $1
FROM (
    SELECT id FROM perdure.sessions WHERE owned AND worker IS NULL AND home = ANY ($3::text[])
    LIMIT $2 FOR UPDATE SKIP LOCKED
) free
WHERE s.id = free.id
  AND EXISTS (SELECT 1 FROM perdure.leases WHERE worker = $1 AND expires_at > clock_timestamp())
RETURNING s.id;

-- name: dead_owners
-- Workers that own sessions and have no lease any more, found with a look-up a worker, not a session.
WITH RECURSIVE owners (worker) AS (
    (SELECT worker FROM perdure.sessions WHERE owned AND worker IS NOT NULL ORDER BY worker LIMIT 1)
    UNION ALL
    SELECT (SELECT s.worker FROM perdure.sessions s WHERE s.owned AND s.worker > o.worker ORDER BY s.worker LIMIT 1)
    FROM owners o WHERE o.worker IS NOT NULL
)
SELECT o.worker FROM owners o WHERE o.worker IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM perdure.leases l WHERE l.worker = o.worker AND l.expires_at > clock_timestamp());

-- name: claim_from_dead
-- Take sessions from workers whose lease has run out, $4. A lease that has run out does not come back.
UPDATE perdure.sessions s SET worker = $1
FROM (
    SELECT id FROM perdure.sessions WHERE owned AND worker = ANY ($4::text[]) AND home = ANY ($3::text[])
    LIMIT $2 FOR UPDATE SKIP LOCKED
) orphan
WHERE s.id = orphan.id
  AND EXISTS (SELECT 1 FROM perdure.leases WHERE worker = $1 AND expires_at > clock_timestamp())
RETURNING s.id;

-- name: claimed
-- What a worker has claimed.
SELECT id FROM perdure.sessions WHERE owned AND worker = $1;

-- name: owner_address
-- Where a session's worker can be reached.
SELECT l.address FROM perdure.sessions s JOIN perdure.leases l ON l.worker = s.worker
WHERE s.id = $1 AND l.expires_at > clock_timestamp();

-- name: database_now
-- What time it is.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
