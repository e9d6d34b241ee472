-- name: wait_open
-- What the world owes a run.
INSERT INTO wait(session_pk, run_pk, wait_id, kind, subject, digest, deadline_ms, fence, opened_ms, payload)
VALUES(:session_pk, :run_pk, :wait_id, :kind, :subject, :digest, :deadline_ms, :fence, :opened_ms, :payload);

-- name: wait_answer
-- Somebody's answer; the triggers decide whether it counts. Without a digest it is for what the row says.
INSERT INTO wait_answer(wait_pk, value, by, digest, answered_ms, expired)
SELECT wait_pk, :value, :by, coalesce(:digest, digest), :now_ms, 0
FROM wait WHERE session_pk = :session_pk AND wait_id = :wait_id;

-- name: wait_expire
-- A deadline that has passed answers, unless somebody was faster.
INSERT INTO wait_answer(wait_pk, value, by, digest, answered_ms, expired)
SELECT w.wait_pk, 'null', NULL, w.digest, :now_ms, 1 FROM wait w
WHERE w.session_pk = :session_pk AND w.closed_ms IS NULL AND w.deadline_ms < :now_ms
  AND NOT EXISTS(SELECT 1 FROM wait_answer a WHERE a.wait_pk = w.wait_pk);

-- name: wait_close
-- Its answer is a fact now.
UPDATE wait SET closed_ms = :now_ms, fence = :fence WHERE session_pk = :session_pk AND wait_id = :wait_id;

-- name: wait_close_all
-- The turn is over: nobody is asked any more.
UPDATE wait SET closed_ms = :now_ms, fence = :fence WHERE session_pk = :session_pk AND closed_ms IS NULL;

-- name: wait_adopt
-- A run that goes on takes over the waits of the one before it.
UPDATE wait SET run_pk = (SELECT run_pk FROM run_identity WHERE run_id = :run_id), fence = :fence
WHERE session_pk = :session_pk AND closed_ms IS NULL;

-- name: wait_answers
-- Answers that are no facts yet, in the order in which the waits were opened. Anybody may have written them: they are
-- read as bytes, so that one that is no text stops nobody.
SELECT w.wait_id, CAST(a.value AS BLOB), CAST(a.by AS BLOB), a.expired FROM wait w JOIN wait_answer a ON a.wait_pk = w.wait_pk
WHERE w.session_pk = :session_pk AND w.closed_ms IS NULL ORDER BY w.wait_pk;

-- name: wait_list
-- Waits that are not closed, of one session or of all, of one run or of all: by the index of the open ones, however
-- many were closed.
SELECT s.session_id, i.run_id, w.wait_id, w.kind, w.subject, w.digest, w.deadline_ms, w.opened_ms, w.closed_ms,
  CAST(w.payload AS BLOB), CAST(a.value AS BLOB), CAST(a.by AS BLOB)
FROM wait w INDEXED BY wait_open
CROSS JOIN session s ON s.session_pk = w.session_pk JOIN run_identity i ON i.run_pk = w.run_pk
LEFT JOIN wait_answer a ON a.wait_pk = w.wait_pk
WHERE w.closed_ms IS NULL
  AND w.session_pk BETWEEN coalesce(:session_pk, 1) AND coalesce(:session_pk, 9223372036854775807)
  AND (:run_id IS NULL OR i.run_id = :run_id)
ORDER BY w.wait_pk;

-- name: wait_get
-- One wait of a session, closed or not.
SELECT s.session_id, i.run_id, w.wait_id, w.kind, w.subject, w.digest, w.deadline_ms, w.opened_ms, w.closed_ms,
  CAST(w.payload AS BLOB), CAST(a.value AS BLOB), CAST(a.by AS BLOB)
FROM wait w JOIN session s ON s.session_pk = w.session_pk JOIN run_identity i ON i.run_pk = w.run_pk
LEFT JOIN wait_answer a ON a.wait_pk = w.wait_pk
WHERE w.session_pk = :session_pk AND w.wait_id = :wait_id;

-- name: wait_answered_runs
-- Parked runs that can go on: every wait is answered, or past its deadline.
SELECT s.session_id, i.run_id
FROM session s
JOIN run_identity i ON i.run_pk = (SELECT max(n.run_pk) FROM run_identity n WHERE n.session_pk = s.session_pk)
JOIN run r ON r.run_pk = i.run_pk
WHERE r.status = 'parked' AND NOT EXISTS(
  SELECT 1 FROM wait w LEFT JOIN wait_answer a ON a.wait_pk = w.wait_pk
  WHERE w.session_pk = s.session_pk AND w.closed_ms IS NULL AND a.wait_pk IS NULL
    AND (w.deadline_ms IS NULL OR w.deadline_ms >= :now_ms))
ORDER BY s.session_pk;
