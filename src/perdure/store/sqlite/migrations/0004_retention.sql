-- How long what has ended is kept, in microseconds, and what finds it by its age. Without a policy it is kept for ever.

ALTER TABLE environments ADD COLUMN keep_events INTEGER;
ALTER TABLE environments ADD COLUMN keep_sessions INTEGER;
ALTER TABLE environments ADD COLUMN keep_receipts INTEGER;

ALTER TABLE sessions ADD COLUMN ended_at INTEGER;
UPDATE sessions SET ended_at = (
    SELECT json_extract(CAST(h.body AS TEXT), '$.ended_at') FROM heads h WHERE h.sid = sessions.sid
) WHERE status IN ('closed', 'cancelled');
CREATE INDEX sessions_ended ON sessions (environment, ended_at) WHERE ended_at IS NOT NULL;

-- Receipts from before this are of no known environment, and stay.
ALTER TABLE idempotency ADD COLUMN environment TEXT NOT NULL DEFAULT '';
ALTER TABLE idempotency ADD COLUMN at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX receipts_by_age ON idempotency (environment, at) WHERE environment <> '';
