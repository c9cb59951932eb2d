-- The journal of turns that are resumed when their process is lost.

-- What came of a step is in the event `ended_seq`. Names are bytes, because people may write NUL.
CREATE TABLE perdure.steps (
    session uuid NOT NULL,
    turn integer NOT NULL,
    name bytea NOT NULL,
    replay text NOT NULL,
    status text NOT NULL,
    request bytea NOT NULL,
    run integer NOT NULL,
    attempts integer NOT NULL,
    started_at bigint NOT NULL,
    ended_seq bigint,
    PRIMARY KEY (session, turn, name)
);

CREATE TABLE perdure.memos (
    session uuid NOT NULL,
    turn integer NOT NULL,
    name bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (session, turn, name)
);
