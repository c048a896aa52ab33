-- Everything that happened, in order. Never updated.
CREATE TABLE events (
    seq     INTEGER PRIMARY KEY,
    at      REAL    NOT NULL,
    kind    TEXT    NOT NULL,
    version INTEGER NOT NULL,
    data    BLOB    NOT NULL
);

-- How each job stands now: written in the same transaction as the events that say so.
CREATE TABLE jobs (
    id           INTEGER PRIMARY KEY,
    name         TEXT    NOT NULL,
    user         TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    submitted_at REAL    NOT NULL,
    started_at   REAL,
    ended_at     REAL,
    code         INTEGER,
    resident     INTEGER NOT NULL,  -- 1 while the engine keeps it in memory
    spec         TEXT    NOT NULL REFERENCES specs (hash),
    data         BLOB    NOT NULL,
    member_of    INTEGER            -- the array or the sweep that it is a part of, if any
);
CREATE INDEX jobs_resident ON jobs (id) WHERE resident = 1;
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX jobs_done_by_name ON jobs (name, ended_at) WHERE state = 'COMPLETED';

-- What was submitted, by content: one row serves a whole bulk.
CREATE TABLE specs (
    hash  TEXT PRIMARY KEY,
    data  BLOB NOT NULL,
    queue TEXT NOT NULL,
    door  TEXT               -- the front door it came through, if any
) WITHOUT ROWID;

-- Scripts by content.
CREATE TABLE blobs (hash TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;

-- Environments by content. Never in events, streams or exports; purged after the end.
CREATE TABLE secrets (hash TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;

-- Client-made keys: the same request twice is one submission.
CREATE TABLE submissions (
    key   TEXT PRIMARY KEY,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL
) WITHOUT ROWID;

-- term: who may write. rest: the small remainder of the state.
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('term', 0);

-- What is new comes last: a file without its first page is read by where the tables lie.

-- How each sweep stands now; its trials are jobs.
CREATE TABLE sweeps (
    id       INTEGER PRIMARY KEY,
    name     TEXT    NOT NULL,
    resident INTEGER NOT NULL,  -- 1 while the engine keeps in memory how its trials stand
    data     BLOB    NOT NULL
);
CREATE INDEX jobs_members ON jobs (member_of, id) WHERE member_of IS NOT NULL;
