-- name: inflight_start
-- This call is about to run: from here on a crash leaves a trace of it.
INSERT INTO inflight(id, run_pk, fence, call_key, tool, effect, state, started_ms)
VALUES(:session_pk << 32 | :position, :run_pk, :fence, :call_key, :tool, :effect, 'started', :started_ms);

-- name: inflight_unstart
-- It was about to run, and somebody said stop.
DELETE FROM inflight WHERE id = :session_pk << 32 | :position AND state = 'started';

-- name: inflight_restart
-- It had started before, and starts again.
UPDATE inflight SET starts = starts + 1, fence = :fence WHERE id = :session_pk << 32 | :position;

-- name: inflight_refuse
-- It was refused, and other calls of its answer wait: its result is kept until all are facts.
INSERT INTO inflight(id, run_pk, fence, call_key, tool, state, started_ms, landed_ms, result)
SELECT :session_pk << 32 | :position, run_pk, :fence, :call_key, :tool, 'landed', updated_ms, updated_ms, :result
FROM run WHERE run_pk = (SELECT run_pk FROM run_identity WHERE run_id = :run_id);

-- name: inflight_land
-- It has a result, durable before its batch is complete.
UPDATE inflight SET state = 'landed', fence = :fence, landed_ms = :landed_ms, result = :result, blobs = :blobs
WHERE id BETWEEN :session_pk << 32 AND :session_pk << 32 | 4294967295 AND call_key = :call_key;

-- name: inflight_clear
-- The results are facts now.
DELETE FROM inflight WHERE id BETWEEN :session_pk << 32 AND :session_pk << 32 | 4294967295;

-- name: inflight_list
-- Calls of a session that have started and are not facts yet.
SELECT call_key, position, tool, effect, state, result, blobs, starts FROM inflight
WHERE id BETWEEN :session_pk << 32 AND :session_pk << 32 | 4294967295 ORDER BY id;

-- name: inflight_blobs
-- The blobs that landed results name.
SELECT DISTINCT b.sha256, b.bytes FROM inflight c JOIN json_each(c.blobs) j JOIN blob b ON b.sha256 = j.value
WHERE c.id BETWEEN :session_pk << 32 AND :session_pk << 32 | 4294967295 AND c.blobs IS NOT NULL;

-- name: inflight_adopt
-- A run that goes on takes over the calls of the one before it.
UPDATE inflight SET run_pk = (SELECT run_pk FROM run_identity WHERE run_id = :run_id), fence = :fence
WHERE id BETWEEN :session_pk << 32 AND :session_pk << 32 | 4294967295;
