-- name: server_facts
-- What a server promises and allows. What only administrators may see is absent for others.
SELECT current_setting('server_version_num')::integer,
       current_setting('fsync') = 'on',
       current_setting('full_page_writes') = 'on',
       current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names'),
       (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
       pg_is_in_recovery(),
       current_setting('default_transaction_read_only') = 'on',
       current_setting('wal_level'),
       current_setting('archive_mode'),
       current_setting('autovacuum') = 'on',
       least(current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
             (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()),
             (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user)),
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       (SELECT setting FROM pg_settings WHERE name = 'data_directory'),
       inet_server_addr() IS NULL;

-- name: open_for_long
-- Transactions that have written and stay open: since how many seconds, and whose they are.
SELECT extract(epoch FROM clock_timestamp() - xact_start)::integer,
       coalesce(nullif(application_name, ''), 'a program') || ' as ' || coalesce(usename, '?')
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND xact_start < clock_timestamp() - interval '60 seconds'
UNION ALL
SELECT extract(epoch FROM clock_timestamp() - prepared)::integer, 'the prepared transaction ' || gid
FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - interval '60 seconds'
ORDER BY 1 DESC;

-- name: held_by_the_dead
-- Workers of $1, with how many sessions they own and for how many seconds their lease is over, if that is known.
SELECT s.worker, count(*), extract(epoch FROM clock_timestamp() - min(l.expires_at))::integer
FROM perdure.sessions s LEFT JOIN perdure.leases l ON l.worker = s.worker
WHERE s.owned AND s.worker = ANY($1::text[]) GROUP BY s.worker ORDER BY s.worker;

-- name: waiting_for_a_machine
-- Machines without a live worker, and how many sessions have their Computer there and need an owner.
SELECT s.home, count(*) FROM perdure.sessions s
WHERE s.owned AND s.home <> ''
  AND s.home NOT IN (SELECT machine FROM perdure.leases WHERE expires_at > clock_timestamp() AND machine IS NOT NULL)
GROUP BY s.home ORDER BY s.home;

-- name: unowned
-- How many sessions need an owner and have none.
SELECT count(*) FROM perdure.sessions WHERE owned AND worker IS NULL;

-- name: feed_is_ahead
-- Whether the feed has marks of a server that had more transactions behind it than this one.
SELECT coalesce(max(newest.mark) >> 16 >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint, false)
FROM perdure.environments e
CROSS JOIN LATERAL (SELECT mark FROM perdure.commits WHERE environment = e.id ORDER BY mark DESC LIMIT 1) newest;

-- name: renumber_commits
-- Put all commits of the feed before what this server will commit, in the order that they have.
WITH places AS (
    SELECT environment, mark, xid, row_number() OVER (ORDER BY mark, xid) AS place FROM perdure.commits
)
UPDATE perdure.commits c SET mark = p.place, xid = pg_current_xact_id()::text::bigint
FROM places p WHERE c.environment = p.environment AND c.mark = p.mark AND c.xid = p.xid RETURNING c.mark;

-- name: forget_marks
-- Heads know of no commits before this server's.
UPDATE perdure.heads SET mark = 0 WHERE mark <> 0 RETURNING session;

-- name: renew_feed
-- No cursor from before is good any more, and what is gone stays gone.
UPDATE perdure.feed SET id = left(md5(gen_random_uuid()::text), 8) RETURNING id;

-- name: drop_below_floors
-- What is below the floor of its feed is not shown any more.
DELETE FROM perdure.commits c USING perdure.environments e
WHERE e.id = c.environment AND (c.mark, c.xid) <= (e.floor_mark, e.floor_xid) RETURNING c.mark;

-- name: forget_floors
-- The feed begins with what it has.
UPDATE perdure.environments SET floor_mark = 0, floor_xid = 0 RETURNING id;
