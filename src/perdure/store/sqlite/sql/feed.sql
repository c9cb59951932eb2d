-- name: put_commit
-- Which events were written in an environment.
INSERT INTO commits (environment, number, at, ranges) VALUES (?1, ?2, ?3, ?4);

-- name: next_feed
-- The first environment after another that has commits.
SELECT environment FROM commits WHERE environment > ?1 ORDER BY environment LIMIT 1;

-- name: feed
-- What cursors of this feed begin with, and where the environment's feed begins now.
SELECT f.id, coalesce((SELECT e.floor FROM environments e WHERE e.id = ?1), 0) FROM feed f;

-- name: commits
-- Commits from a number on.
SELECT number, ranges FROM commits WHERE environment = ?1 AND number >= ?2 ORDER BY number LIMIT ?3;

-- name: newest_commit
-- The last commit.
SELECT max(number) FROM commits WHERE environment = ?1;

-- name: session_id
-- The id of a session by its number.
SELECT id FROM sessions WHERE sid = ?1;
