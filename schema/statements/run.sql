-- name: run_identity_add
-- The id is taken for as long as the session's facts live.
INSERT INTO run_identity(run_id, session_pk, branch_pk, first_seq, input_sha256, resumed_from)
SELECT :run_id, session_pk, live_branch, :first_seq, :input_sha256, :resumed_from
FROM session WHERE session_pk = :session_pk;

-- name: run_begin
-- A run's row; its number makes the order in which runs are evicted.
INSERT INTO run(run_pk, session_pk, run_no, fence, status, created_ms, updated_ms, prompt)
SELECT i.run_pk, s.session_pk, s.run_count, :fence, :status, :now_ms, :now_ms, :prompt
FROM run_identity i JOIN session s ON s.session_pk = i.session_pk WHERE i.run_id = :run_id
RETURNING run_pk;

-- name: run_set_status
-- What a live run is about to do; a trigger keeps the end of one that has ended.
UPDATE run SET fence = :fence, status = :status, updated_ms = max(:now_ms, updated_ms) WHERE run_pk = :run_pk;

-- name: run_end
-- The run's last word, with its totals. It does not end before it began, whatever the clock says; nor completed while
-- a message waits for it: whoever was told that it would be read is right.
UPDATE run SET fence = :fence, status = :status, updated_ms = max(:now_ms, updated_ms),
  ended_ms = max(:now_ms, created_ms), rounds = :rounds,
  tool_calls_count = :tool_calls_count, prompt_tokens = :prompt_tokens, completion_tokens = :completion_tokens,
  total_tokens = :total_tokens, cache_read_tokens = :cache_read_tokens, cache_write_tokens = :cache_write_tokens,
  requests_without_usage = max(requests_without_usage, :requests_without_usage), resumable = :resumable,
  error_code = :error_code,
  error_message = :error_message, result_text = :result_text
WHERE run_pk = :run_pk AND NOT (:status = 'completed'
  AND EXISTS(SELECT 1 FROM inbox i WHERE i.session_pk = run.session_pk AND i.kind = 'steer'));

-- name: run_count_unknown
-- Requests of which nobody knows what they took, told of a run that does not end here.
UPDATE run SET fence = :fence, requests_without_usage = max(requests_without_usage, :at_least) + :more
WHERE run_pk = :run_pk;

-- name: run_park
-- Nothing else can be done before the world has answered; refused when an answer is there that is no fact yet, or an
-- order to stop.
UPDATE run SET fence = :fence, status = 'parked', updated_ms = max(:now_ms, updated_ms), rounds = :rounds,
  tool_calls_count = :tool_calls_count, prompt_tokens = :prompt_tokens, completion_tokens = :completion_tokens,
  total_tokens = :total_tokens, cache_read_tokens = :cache_read_tokens, cache_write_tokens = :cache_write_tokens,
  requests_without_usage = :requests_without_usage
WHERE run_pk = :run_pk AND NOT EXISTS(
  SELECT 1 FROM wait w JOIN wait_answer a ON a.wait_pk = w.wait_pk
  WHERE w.session_pk = run.session_pk AND w.closed_ms IS NULL)
  AND NOT EXISTS(SELECT 1 FROM inbox i WHERE i.session_pk = run.session_pk AND i.kind IN ('cancel', 'interrupt'));

-- name: run_wake
-- The world has answered: the same run goes on.
UPDATE run SET fence = :fence, status = 'executing', updated_ms = max(:now_ms, updated_ms)
WHERE run_pk = :run_pk AND status = 'parked';

-- name: run_parked
-- What a parked run goes on from: its next event, and its totals so far.
SELECT t.event_count, r.tool_calls_count, r.requests_without_usage, r.prompt_tokens, r.completion_tokens, r.total_tokens, r.cache_read_tokens,
  r.cache_write_tokens
FROM run r JOIN stream t ON t.stream_pk = r.run_pk WHERE r.run_pk = :run_pk;

-- name: run_forget_checkpoint
-- Its turn was closed by a later one: nothing is left to resume.
DELETE FROM checkpoint WHERE session_pk = :session_pk;

-- name: run_identity_get
-- Whose run this is and where its facts begin.
SELECT i.run_id, i.run_pk, s.session_id, i.first_seq, i.input_sha256
FROM run_identity i JOIN session s ON s.session_pk = i.session_pk WHERE i.run_id = :run_id;

-- name: run_newest
-- The run itself, or the newest that goes on from it.
WITH RECURSIVE chain(run_pk) AS (
  SELECT run_pk FROM run_identity WHERE run_id = :run_id
  UNION ALL SELECT n.run_pk FROM chain c JOIN run_identity n ON n.resumed_from = c.run_pk)
SELECT i.run_id, i.run_pk, s.session_id, i.first_seq, i.input_sha256
FROM run_identity i JOIN session s ON s.session_pk = i.session_pk
WHERE i.run_pk = (SELECT max(run_pk) FROM chain);

-- name: run_oldest
-- The run that began the turn which this one goes on with.
WITH RECURSIVE chain(run_pk, resumed_from) AS (
  SELECT run_pk, resumed_from FROM run_identity WHERE run_id = :run_id
  UNION ALL SELECT p.run_pk, p.resumed_from FROM chain c JOIN run_identity p ON p.run_pk = c.resumed_from)
SELECT i.run_id, i.run_pk, s.session_id, i.first_seq, i.input_sha256
FROM run_identity i JOIN session s ON s.session_pk = i.session_pk
WHERE i.run_pk = (SELECT min(run_pk) FROM chain);

-- name: run_list
-- Runs of a session, oldest first.
SELECT i.run_id, s.session_id, r.status, n.run_id, p.run_id, r.prompt, r.created_ms, r.updated_ms, r.ended_ms,
  r.rounds, r.tool_calls_count, r.prompt_tokens, r.completion_tokens, r.total_tokens, r.cache_read_tokens,
  r.cache_write_tokens, r.requests_without_usage, r.resumable, r.error_code, r.error_message, r.result_text,
  t.event_count, c.round, s.owner
FROM run r
JOIN run_identity i ON i.run_pk = r.run_pk
JOIN session s ON s.session_pk = r.session_pk
LEFT JOIN stream t ON t.stream_pk = r.run_pk
LEFT JOIN checkpoint c ON c.run_pk = r.run_pk
LEFT JOIN run_identity p ON p.run_pk = i.resumed_from
LEFT JOIN run_identity n ON n.resumed_from = r.run_pk
WHERE r.session_pk = :session_pk ORDER BY r.run_no;

-- name: run_get
-- One run by its id, of whatever session.
SELECT i.run_id, s.session_id, r.status, n.run_id, p.run_id, r.prompt, r.created_ms, r.updated_ms, r.ended_ms,
  r.rounds, r.tool_calls_count, r.prompt_tokens, r.completion_tokens, r.total_tokens, r.cache_read_tokens,
  r.cache_write_tokens, r.requests_without_usage, r.resumable, r.error_code, r.error_message, r.result_text,
  t.event_count, c.round, s.owner
FROM run_identity i
JOIN run r ON r.run_pk = i.run_pk
JOIN session s ON s.session_pk = r.session_pk
LEFT JOIN stream t ON t.stream_pk = r.run_pk
LEFT JOIN checkpoint c ON c.run_pk = r.run_pk
LEFT JOIN run_identity p ON p.run_pk = i.resumed_from
LEFT JOIN run_identity n ON n.resumed_from = r.run_pk
WHERE i.run_id = :run_id;

-- name: run_last
-- The newest run of a session: what a new turn finds. Its row may have been evicted: then it has ended.
SELECT i.run_id, i.run_pk, coalesce(r.status, 'failed'), r.error_code, r.error_message
FROM run_identity i LEFT JOIN run r ON r.run_pk = i.run_pk
WHERE i.session_pk = :session_pk ORDER BY i.run_pk DESC LIMIT 1;
