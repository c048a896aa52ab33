-- The same tables as in SQLite (schema.sql), in a schema of their own.

-- Everything that happened, in order. Never updated.
CREATE TABLE events (
    seq     bigint           PRIMARY KEY,
    at      double precision NOT NULL,
    kind    text             NOT NULL,
    version integer          NOT NULL,
    data    bytea            NOT NULL
);

-- What was submitted, by content: one row serves a whole bulk.
CREATE TABLE specs (
    hash        text  PRIMARY KEY,
    queue       text  NOT NULL,
    door        text,             -- the front door it came through, if any
    environment text  NOT NULL,   -- which row of secrets it needs
    data        bytea NOT NULL
);

-- How each job stands now: written in the same transaction as the events that say so.
CREATE TABLE jobs (
    id           bigint           PRIMARY KEY,
    name         text             NOT NULL,
    owner        text             NOT NULL,
    state        text             NOT NULL,
    submitted_at double precision NOT NULL,
    started_at   double precision,
    ended_at     double precision,
    code         bigint,
    resident     boolean          NOT NULL,  -- while the engine keeps it in memory
    spec         text             NOT NULL REFERENCES specs (hash),
    data         bytea            NOT NULL,
    member_of    bigint                      -- the array or the sweep that it is a part of, if any
);
CREATE INDEX jobs_resident ON jobs (id) WHERE resident;
CREATE INDEX jobs_ended ON jobs (ended_at DESC NULLS LAST, id DESC) WHERE ended_at IS NOT NULL;
CREATE INDEX jobs_done_by_name ON jobs (name, ended_at) WHERE state = 'COMPLETED';
CREATE INDEX jobs_members ON jobs (member_of, id) WHERE member_of IS NOT NULL;

-- How each sweep stands now; its trials are jobs.
CREATE TABLE sweeps (
    id       bigint  PRIMARY KEY,
    name     text    NOT NULL,
    resident boolean NOT NULL,  -- while the engine keeps in memory how its trials stand
    data     bytea   NOT NULL
);

-- Scripts by content.
CREATE TABLE blobs (hash text PRIMARY KEY, data bytea NOT NULL);

-- Environments by content. Never in events, streams or exports; purged after the end.
CREATE TABLE secrets (hash text PRIMARY KEY, data bytea NOT NULL);

-- Client-made keys: the same request twice is one submission.
CREATE TABLE submissions (
    key   text   PRIMARY KEY,
    first bigint NOT NULL,
    count bigint NOT NULL
);

-- layout: of these tables. term: who may write. forced: the last event known to be on disk.
-- rest: the small remainder of the state. identity: tells this journal from any other.
CREATE TABLE meta (key text PRIMARY KEY, number bigint, data bytea);
INSERT INTO meta (key, number) VALUES ('term', 0), ('forced', 0);

-- Fails unless this is still the term. The lock makes whoever takes over wait for our end.
CREATE FUNCTION check_term(mine bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM meta WHERE key = 'term' AND number = mine FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another daemon has taken over' USING ERRCODE = 'STK01';
    END IF;
END $$;
