-- name: checkpoint_put
-- How far the run has come: a cursor that is rewritten after each settled round.
INSERT INTO checkpoint(run_pk, session_pk, branch_pk, seq, round, fence, ts_ms, schema_version, counters, usage, state, proof)
VALUES(:run_pk, :session_pk, :branch_pk, :seq, :round, :fence, :ts_ms, :schema_version, :counters, :usage, :state, :proof)
ON CONFLICT(run_pk) DO UPDATE SET branch_pk = excluded.branch_pk, seq = excluded.seq, round = excluded.round,
  fence = excluded.fence, ts_ms = excluded.ts_ms, counters = excluded.counters, usage = excluded.usage,
  state = excluded.state, proof = excluded.proof;

-- name: checkpoint_get
-- The cursor of a run, if it has one.
SELECT schema_version, seq, round FROM checkpoint WHERE run_pk = :run_pk;

-- name: checkpoint_state
-- The folded state of the newest cursor of a session, for whoever can prove that it belongs to the log.
SELECT seq, CAST(state AS BLOB), proof FROM checkpoint WHERE session_pk = :session_pk ORDER BY seq DESC LIMIT 1;
