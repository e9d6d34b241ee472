-- name: trace_append
-- What one tool run cost, numbered after the newest that is kept of its session.
INSERT INTO trace(id, run_pk, fence, ts_ms, kind, name, payload)
SELECT coalesce((SELECT max(id) + 1 FROM trace WHERE id BETWEEN :session_pk << 32 AND :session_pk << 32 | 4294967295),
  :session_pk << 32), :run_pk, :fence, :ts_ms, :kind, :name, :payload
FROM session WHERE session_pk = :session_pk;

-- name: trace_list
-- The traces that are kept of a session, oldest first.
SELECT t.number, i.run_id, t.ts_ms, CAST(t.payload AS BLOB) FROM trace t LEFT JOIN run_identity i ON i.run_pk = t.run_pk
WHERE t.id BETWEEN :session_pk << 32 AND :session_pk << 32 | 4294967295 ORDER BY t.id;
