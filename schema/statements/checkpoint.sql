-- name: checkpoint_put
-- How far the run has come: a cursor that is rewritten after each settled round.
INSERT INTO checkpoint(run_pk, session_pk, branch_pk, seq, round, fence, ts_ms, schema_version, counters, usage)
VALUES(:run_pk, :session_pk, :branch_pk, :seq, :round, :fence, :ts_ms, :schema_version, :counters, :usage)
ON CONFLICT(run_pk) DO UPDATE SET branch_pk = excluded.branch_pk, seq = excluded.seq, round = excluded.round,
  fence = excluded.fence, ts_ms = excluded.ts_ms, counters = excluded.counters, usage = excluded.usage;

-- name: checkpoint_get
-- The cursor of a run, if it has one.
SELECT schema_version, seq, round FROM checkpoint WHERE run_pk = :run_pk;
