-- The journal of turns that are resumed when their process is lost.

-- `pos` is the turn's. What came of a step is in the event `ended_seq`.
CREATE TABLE steps (
    pos INTEGER NOT NULL,
    name TEXT NOT NULL,
    replay TEXT NOT NULL,
    status TEXT NOT NULL,
    request BLOB NOT NULL,
    run INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_seq INTEGER,
    PRIMARY KEY (pos, name)
) WITHOUT ROWID;

CREATE TABLE memos (pos INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (pos, name)) WITHOUT ROWID;
