-- name: put_commit
-- Which events were written in an environment; the newest commit always stays, so that numbers never come again.
INSERT INTO commits (environment, number, at, ranges)
VALUES (?1, (SELECT coalesce(max(number), 0) + 1 FROM commits WHERE environment = ?1), ?2, ?3);

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
