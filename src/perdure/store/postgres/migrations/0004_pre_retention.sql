-- How long what has ended is kept, in microseconds, and what finds it by its age. Without a policy it is kept for ever.

ALTER TABLE perdure.environments ADD COLUMN keep_events bigint;
ALTER TABLE perdure.environments ADD COLUMN keep_sessions bigint;
ALTER TABLE perdure.environments ADD COLUMN keep_receipts bigint;

ALTER TABLE perdure.sessions ADD COLUMN ended_at bigint;
UPDATE perdure.sessions s SET ended_at = substring(convert_from(h.body, 'UTF8') FROM '"ended_at":([0-9]+)')::bigint
FROM perdure.heads h WHERE h.session = s.id AND s.status IN ('closed', 'cancelled');
CREATE INDEX sessions_ended ON perdure.sessions (environment, ended_at) WHERE ended_at IS NOT NULL;

-- Receipts from before this are of no known environment, and stay.
ALTER TABLE perdure.idempotency ADD COLUMN environment text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE perdure.idempotency ADD COLUMN at bigint NOT NULL DEFAULT 0;
CREATE INDEX receipts_by_age ON perdure.idempotency (environment, at) WHERE environment <> '';
