-- How workers that know no machines find what they may claim.
DROP INDEX perdure.sessions_free;
DROP INDEX perdure.sessions_by_worker;
