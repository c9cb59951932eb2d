-- name: renew_lease
-- Begin or renew a lease; one that has run out stays so.
INSERT INTO perdure.leases AS l (worker, expires_at, address)
VALUES ($1, clock_timestamp() + $2::bigint * interval '1 microsecond', $3)
ON CONFLICT (worker) DO UPDATE SET expires_at = excluded.expires_at, address = excluded.address
WHERE l.expires_at > clock_timestamp()
RETURNING worker;

-- name: release_lease
-- Give a lease back.
UPDATE perdure.leases SET expires_at = clock_timestamp() WHERE worker = $1 AND expires_at > clock_timestamp()
RETURNING worker;

-- name: forget_leases
-- Leases that ran out long ago, of workers that own nothing any more.
DELETE FROM perdure.leases l WHERE l.expires_at < clock_timestamp() - interval '1 day'
AND NOT EXISTS (SELECT 1 FROM perdure.sessions s WHERE s.worker = l.worker AND s.owned)
RETURNING worker;

-- name: claim_free
-- Take sessions that need an owner and have none, past those that somebody else is taking.
UPDATE perdure.sessions s SET worker = $1
FROM (SELECT id FROM perdure.sessions WHERE owned AND worker IS NULL ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED) free
WHERE s.id = free.id
  AND EXISTS (SELECT 1 FROM perdure.leases WHERE worker = $1 AND expires_at > clock_timestamp())
RETURNING s.id;

-- name: claim_from_dead
-- Take sessions from workers whose lease has run out.
UPDATE perdure.sessions s SET worker = $1
FROM (
    SELECT id FROM perdure.sessions
    WHERE owned AND worker = ANY (ARRAY(SELECT worker FROM perdure.leases WHERE expires_at <= clock_timestamp()))
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
