-- The promises that hold whoever writes, in whatever language. Three kinds:
--   refuse   RAISE(ABORT, 'thence:CODE ...'): the log is append-only, a stale fence writes nothing
--   count    cumulative numbers, so that nothing ever counts rows
--   evict    FIFO caps inside the inserting transaction; a cap never makes an insert fail
-- RAISE leaves the transaction open: the caller rolls back. REPLACE fires no delete trigger, so every table that must
-- not be replaced says so in a BEFORE INSERT trigger.

-- ------------------------------------------------------------------ facts: append-only, chained, fenced
CREATE TRIGGER fact_append BEFORE INSERT ON fact BEGIN
  SELECT CASE
    WHEN b.branch_pk IS NULL THEN RAISE(ABORT, 'thence:FACT_CONFLICT no such branch')
    WHEN NEW.fence IS NOT s.fence THEN RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a fact')
    WHEN (NEW.id & 4294967295) IS NOT b.head_seq + 1 THEN RAISE(ABORT, 'thence:FACT_CONFLICT seq is not head + 1')
    WHEN NEW.prev_hash IS NOT b.head_hash THEN RAISE(ABORT, 'thence:FACT_CONFLICT previous hash is not the head''s')
    WHEN length(NEW.hash) IS NOT 32 THEN RAISE(ABORT, 'thence:FACT_CONFLICT hash is not 32 bytes')
    WHEN EXISTS(SELECT 1 FROM fact f WHERE f.id = NEW.id) THEN RAISE(ABORT, 'thence:FACT_CONFLICT fact exists')
    WHEN EXISTS(SELECT 1 FROM fact f WHERE f.branch_pk = NEW.id >> 32 AND f.key = NEW.key)
      OR EXISTS(SELECT 1 FROM ancestry a JOIN fact f ON f.branch_pk = a.ancestor_pk AND f.key = NEW.key
                WHERE a.branch_pk = NEW.id >> 32 AND f.seq BETWEEN a.first_seq AND a.last_seq)
      THEN RAISE(ABORT, 'thence:FACT_CONFLICT key exists')
    END
  FROM (SELECT 1) LEFT JOIN branch b ON b.branch_pk = NEW.id >> 32 LEFT JOIN session s ON s.session_pk = b.session_pk;
END;
CREATE TRIGGER fact_appended AFTER INSERT ON fact BEGIN
  UPDATE branch SET head_seq = NEW.id & 4294967295, head_hash = NEW.hash WHERE branch_pk = NEW.id >> 32;
END;
CREATE TRIGGER fact_no_update BEFORE UPDATE ON fact BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT the log is append-only');
END;
CREATE TRIGGER fact_no_delete BEFORE DELETE ON fact
WHEN EXISTS(SELECT 1 FROM branch b JOIN session s ON s.session_pk = b.session_pk
            WHERE b.branch_pk = OLD.id >> 32 AND (OLD.id & 4294967295) > b.pruned_to) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT the log is append-only');
END;

CREATE TRIGGER branch_open BEFORE INSERT ON branch BEGIN
  SELECT CASE
    WHEN EXISTS(SELECT 1 FROM branch WHERE branch_pk = NEW.branch_pk)
      THEN RAISE(ABORT, 'thence:FACT_CONFLICT branch exists')
    WHEN NEW.head_seq IS NOT NEW.first_seq - 1
      THEN RAISE(ABORT, 'thence:FACT_CONFLICT a new branch has no facts of its own')
    WHEN NEW.parent_pk IS NOT NULL
      AND NEW.session_pk IS NOT (SELECT session_pk FROM branch WHERE branch_pk = NEW.parent_pk)
      THEN RAISE(ABORT, 'thence:FACT_CONFLICT a branch goes on from a branch of its session')
    WHEN NEW.parent_pk IS NOT NULL AND NEW.head_hash IS NOT (
        SELECT f.hash FROM fact f WHERE f.id = NEW.parent_pk << 32 | NEW.head_seq
        UNION ALL
        SELECT f.hash FROM ancestry a JOIN fact f ON f.id = a.ancestor_pk << 32 | NEW.head_seq
        WHERE a.branch_pk = NEW.parent_pk AND NEW.head_seq BETWEEN a.first_seq AND a.last_seq LIMIT 1)
      THEN RAISE(ABORT, 'thence:FACT_CONFLICT a branch goes on from a fact of its parent')
    END;
END;
CREATE TRIGGER branch_head BEFORE UPDATE OF branch_pk, session_pk, parent_pk, first_seq, head_seq, head_hash ON branch
WHEN NEW.branch_pk IS NOT OLD.branch_pk OR NEW.session_pk IS NOT OLD.session_pk OR NEW.parent_pk IS NOT OLD.parent_pk
  OR NEW.first_seq IS NOT OLD.first_seq OR NEW.head_seq IS NOT OLD.head_seq + 1
  OR NEW.head_hash IS NOT (SELECT hash FROM fact WHERE id = OLD.branch_pk << 32 | NEW.head_seq) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT the head moves only to the next fact');
END;
CREATE TRIGGER branch_prune BEFORE UPDATE OF pruned_to ON branch
WHEN NEW.pruned_to < OLD.pruned_to
  OR NOT EXISTS(SELECT 1 FROM tombstone t JOIN fact f ON f.id = t.branch_pk << 32 | t.seq AND f.hash = t.hash
                WHERE t.branch_pk = OLD.branch_pk AND t.seq = NEW.pruned_to) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT a prune mark only rises, with a tombstone');
END;
CREATE TRIGGER branch_no_delete BEFORE DELETE ON branch
WHEN EXISTS(SELECT 1 FROM session WHERE session_pk = OLD.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT the log is append-only');
END;
-- What a branch sees besides its own facts follows from its parent: the same stretches, and the parent's own facts, up to
-- where it begins. No other row is legal, and none once it has facts: what replaces one is the same.
CREATE TRIGGER ancestry_stretch BEFORE INSERT ON ancestry
WHEN NEW.first_seq > NEW.last_seq OR NOT EXISTS(
  SELECT 1 FROM branch b JOIN branch p ON p.branch_pk = b.parent_pk
  WHERE b.branch_pk = NEW.branch_pk AND b.head_seq = b.first_seq - 1
    AND ((NEW.ancestor_pk = p.branch_pk AND NEW.first_seq = p.first_seq AND NEW.last_seq = b.head_seq)
      OR EXISTS(SELECT 1 FROM ancestry a WHERE a.branch_pk = p.branch_pk AND a.ancestor_pk = NEW.ancestor_pk
                AND a.first_seq = NEW.first_seq AND NEW.last_seq = min(a.last_seq, b.head_seq)))) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT a branch sees what its parent saw where it begins');
END;
CREATE TRIGGER ancestry_no_update BEFORE UPDATE ON ancestry BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT the log is append-only');
END;
CREATE TRIGGER ancestry_no_delete BEFORE DELETE ON ancestry
WHEN EXISTS(SELECT 1 FROM branch b JOIN session s ON s.session_pk = b.session_pk
            WHERE b.branch_pk = OLD.branch_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT the log is append-only');
END;
-- A tombstone says with which hash the chain goes on: it stays as long as its branch.
CREATE TRIGGER tombstone_no_replace BEFORE INSERT ON tombstone
WHEN EXISTS(SELECT 1 FROM tombstone WHERE branch_pk = NEW.branch_pk AND seq = NEW.seq) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT tombstone exists');
END;
CREATE TRIGGER tombstone_no_update BEFORE UPDATE ON tombstone BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT the log is append-only');
END;
CREATE TRIGGER tombstone_no_delete BEFORE DELETE ON tombstone
WHEN EXISTS(SELECT 1 FROM branch b JOIN session s ON s.session_pk = b.session_pk
            WHERE b.branch_pk = OLD.branch_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT the log is append-only');
END;

-- ------------------------------------------------------------------ sessions: the fence only grows; delete takes all
CREATE TRIGGER session_open BEFORE INSERT ON session
WHEN EXISTS(SELECT 1 FROM session WHERE session_pk = NEW.session_pk OR session_id = NEW.session_id) BEGIN
  SELECT RAISE(ABORT, 'thence:SESSION_EXISTS session exists');
END;
CREATE TRIGGER session_fence BEFORE UPDATE OF session_pk, session_id, fence ON session
WHEN NEW.fence < OLD.fence OR NEW.session_pk IS NOT OLD.session_pk OR NEW.session_id IS NOT OLD.session_id BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST a fence only grows');
END;
CREATE TRIGGER session_runs BEFORE UPDATE OF run_count ON session WHEN NEW.run_count < OLD.run_count BEGIN
  SELECT RAISE(ABORT, 'thence:RUN_EXISTS the number of runs only grows');
END;
CREATE TRIGGER session_deleted AFTER DELETE ON session BEGIN
  DELETE FROM fact WHERE id IN (SELECT f.id FROM branch b JOIN fact f
    ON f.id BETWEEN b.branch_pk << 32 AND b.branch_pk << 32 | 4294967295 WHERE b.session_pk = OLD.session_pk);
  DELETE FROM ancestry  WHERE branch_pk IN (SELECT branch_pk FROM branch WHERE session_pk = OLD.session_pk);
  DELETE FROM tombstone WHERE branch_pk IN (SELECT branch_pk FROM branch WHERE session_pk = OLD.session_pk);
  DELETE FROM branch    WHERE session_pk = OLD.session_pk;
  DELETE FROM inflight  WHERE id BETWEEN OLD.session_pk << 32 AND OLD.session_pk << 32 | 4294967295;
  DELETE FROM wait      WHERE session_pk = OLD.session_pk;
  DELETE FROM run       WHERE session_pk = OLD.session_pk;
  DELETE FROM checkpoint WHERE session_pk = OLD.session_pk;
  DELETE FROM stream    WHERE stream_pk = -OLD.session_pk
    OR stream_pk IN (SELECT run_pk FROM run_identity WHERE session_pk = OLD.session_pk);
  DELETE FROM run_identity WHERE session_pk = OLD.session_pk;
  DELETE FROM trace     WHERE id BETWEEN OLD.session_pk << 32 AND OLD.session_pk << 32 | 4294967295;
  DELETE FROM inbox     WHERE session_pk = OLD.session_pk;
  DELETE FROM request   WHERE session_pk = OLD.session_pk;
  DELETE FROM task      WHERE session_pk = OLD.session_pk;
  DELETE FROM session_option WHERE session_pk = OLD.session_pk;
  DELETE FROM blob_ref  WHERE session_pk = OLD.session_pk;
END;
CREATE TRIGGER wait_deleted AFTER DELETE ON wait BEGIN
  DELETE FROM wait_answer WHERE wait_pk = OLD.wait_pk;
END;
-- One answer a wait, for what was asked about, while somebody waits for it and before the deadline; `expired` is the
-- answer of a deadline that has passed.
CREATE TRIGGER wait_answer_once BEFORE INSERT ON wait_answer BEGIN
  SELECT CASE
    WHEN EXISTS(SELECT 1 FROM wait_answer WHERE wait_pk = NEW.wait_pk)
      THEN RAISE(ABORT, 'thence:WAIT_ALREADY_ANSWERED this wait has its answer')
    WHEN NOT EXISTS(SELECT 1 FROM wait WHERE wait_pk = NEW.wait_pk)
      THEN RAISE(ABORT, 'thence:WAIT_NOT_FOUND there is no such wait')
    WHEN EXISTS(SELECT 1 FROM wait WHERE wait_pk = NEW.wait_pk AND closed_ms IS NOT NULL)
      THEN RAISE(ABORT, 'thence:WAIT_CLOSED nobody waits for this any more')
    WHEN NOT EXISTS(SELECT 1 FROM wait WHERE wait_pk = NEW.wait_pk AND digest = NEW.digest)
      THEN RAISE(ABORT, 'thence:WAIT_DIGEST_MISMATCH the answer is for something else')
    WHEN NEW.expired <> coalesce((SELECT deadline_ms < NEW.answered_ms FROM wait WHERE wait_pk = NEW.wait_pk), 0)
      THEN RAISE(ABORT, 'thence:WAIT_EXPIRED the deadline of this wait says otherwise')
    -- as in event_in_insert
    WHEN NEW.value || coalesce(NEW.by, '') GLOB '*' || char(65533) || '*'
      AND instr(NEW.value || coalesce(NEW.by, ''), char(65533)) = 0
      AND instr(NEW.value || coalesce(NEW.by, ''), char(65534)) = 0
      AND instr(NEW.value || coalesce(NEW.by, ''), char(65535)) = 0
      THEN RAISE(ABORT, 'thence:BAD_INPUT value and by must be UTF-8')
  END;
END;
CREATE TRIGGER wait_answer_no_delete BEFORE DELETE ON wait_answer
WHEN EXISTS(SELECT 1 FROM wait WHERE wait_pk = OLD.wait_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:WAIT_ALREADY_ANSWERED an answer lives as long as its wait');
END;
CREATE TRIGGER wait_answer_no_update BEFORE UPDATE ON wait_answer BEGIN
  SELECT RAISE(ABORT, 'thence:WAIT_ALREADY_ANSWERED this wait has its answer');
END;
CREATE TRIGGER blob_ref_no_update BEFORE UPDATE ON blob_ref BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT a session names its blobs as long as it lives');
END;
CREATE TRIGGER blob_ref_no_delete BEFORE DELETE ON blob_ref
WHEN EXISTS(SELECT 1 FROM session WHERE session_pk = OLD.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT a session names its blobs as long as it lives');
END;
CREATE TRIGGER blob_ref_deleted AFTER DELETE ON blob_ref
WHEN NOT EXISTS(SELECT 1 FROM blob_ref WHERE sha256 = OLD.sha256) BEGIN
  DELETE FROM blob WHERE sha256 = OLD.sha256;
END;
-- The same blob again is ignored under any conflict clause; other bytes under its hash are refused.
CREATE TRIGGER blob_once BEFORE INSERT ON blob WHEN EXISTS(SELECT 1 FROM blob WHERE sha256 = NEW.sha256) BEGIN
  SELECT CASE WHEN NEW.bytes IS (SELECT bytes FROM blob WHERE sha256 = NEW.sha256)
    THEN RAISE(IGNORE) ELSE RAISE(ABORT, 'thence:FACT_CONFLICT a blob is its hash') END;
END;
CREATE TRIGGER blob_no_update BEFORE UPDATE ON blob BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT a blob is its hash');
END;
CREATE TRIGGER blob_no_delete BEFORE DELETE ON blob WHEN EXISTS(SELECT 1 FROM blob_ref WHERE sha256 = OLD.sha256) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT a session still names this blob');
END;

-- ------------------------------------------------------------------ the fence on everything a run writes
CREATE TRIGGER inflight_fence BEFORE INSERT ON inflight
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = NEW.id >> 32) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on an in-flight call');
END;
CREATE TRIGGER inflight_no_replace BEFORE INSERT ON inflight
WHEN EXISTS(SELECT 1 FROM inflight WHERE id = NEW.id) BEGIN
  SELECT RAISE(ABORT, 'thence:FACT_CONFLICT this call has started');
END;
CREATE TRIGGER inflight_fence_update BEFORE UPDATE ON inflight
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = OLD.id >> 32) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on an in-flight call');
END;
CREATE TRIGGER checkpoint_fence BEFORE INSERT ON checkpoint
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = NEW.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a checkpoint');
END;
CREATE TRIGGER checkpoint_fence_update BEFORE UPDATE ON checkpoint
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = OLD.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a checkpoint');
END;
CREATE TRIGGER wait_fence BEFORE INSERT ON wait
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = NEW.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a wait');
END;
CREATE TRIGGER wait_fence_update BEFORE UPDATE ON wait
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = OLD.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a wait');
END;
CREATE TRIGGER wait_no_replace BEFORE INSERT ON wait
WHEN EXISTS(SELECT 1 FROM wait WHERE wait_pk = NEW.wait_pk OR (session_pk = NEW.session_pk AND wait_id = NEW.wait_id)) BEGIN
  SELECT RAISE(ABORT, 'thence:WAIT_EXISTS this wait was opened before');
END;
CREATE TRIGGER delta_fence BEFORE INSERT ON delta
WHEN NEW.fence IS NOT (SELECT s.fence FROM stream t JOIN session s ON s.session_pk = t.session_pk
                       WHERE t.stream_pk = NEW.id >> 32) BEGIN
  SELECT CASE WHEN EXISTS(SELECT 1 FROM stream WHERE stream_pk = NEW.id >> 32)
    THEN RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a delta') ELSE RAISE(IGNORE) END;
END;

-- ------------------------------------------------------------------ runs: terminal is final; oldest go first
CREATE TRIGGER run_fence BEFORE INSERT ON run
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = NEW.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a run');
END;
CREATE TRIGGER run_fence_update BEFORE UPDATE ON run
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = OLD.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a run');
END;
CREATE TRIGGER run_no_replace BEFORE INSERT ON run
WHEN EXISTS(SELECT 1 FROM run WHERE run_pk = NEW.run_pk OR (session_pk = NEW.session_pk AND run_no = NEW.run_no)) BEGIN
  SELECT RAISE(ABORT, 'thence:RUN_EXISTS this run has its row');
END;
-- With another number it could take another run's place, which no delete trigger sees.
CREATE TRIGGER run_no_move BEFORE UPDATE OF run_pk, session_pk, run_no ON run
WHEN NEW.run_pk IS NOT OLD.run_pk OR NEW.session_pk IS NOT OLD.session_pk OR NEW.run_no IS NOT OLD.run_no BEGIN
  SELECT RAISE(ABORT, 'thence:RUN_EXISTS a run stays where it is');
END;
CREATE TRIGGER run_terminal_is_final BEFORE UPDATE OF status ON run
WHEN OLD.status IN ('completed', 'failed', 'cancelled') AND NEW.status IS NOT OLD.status BEGIN
  SELECT RAISE(IGNORE);
END;
CREATE TRIGGER run_added AFTER INSERT ON run BEGIN
  UPDATE session SET run_count = NEW.run_no + 1 WHERE session_pk = NEW.session_pk AND run_count <= NEW.run_no;
  DELETE FROM run WHERE session_pk = NEW.session_pk
    AND run_no < (SELECT run_count - max_runs_retained FROM session WHERE session_pk = NEW.session_pk)
    AND (status IN ('completed', 'failed', 'cancelled')
      OR EXISTS(SELECT 1 FROM run_identity i WHERE i.resumed_from = run.run_pk));
END;
-- A run is judged again when it ends ...
CREATE TRIGGER run_ended AFTER UPDATE OF status ON run WHEN NEW.status IN ('completed', 'failed', 'cancelled') BEGIN
  DELETE FROM checkpoint WHERE run_pk = NEW.run_pk
    AND NOT (NEW.status = 'failed' AND NEW.resumable = 1);
  DELETE FROM delta WHERE id BETWEEN NEW.run_pk << 32 AND NEW.run_pk << 32 | 4294967295;
  DELETE FROM run WHERE run_pk = NEW.run_pk
    AND run_no < (SELECT run_count - max_runs_retained FROM session WHERE session_pk = NEW.session_pk);
END;
-- ... and when another run has taken its work over.
CREATE TRIGGER run_superseded AFTER INSERT ON run_identity WHEN NEW.resumed_from IS NOT NULL BEGIN
  DELETE FROM run WHERE run_pk = NEW.resumed_from
    AND run_no < (SELECT run_count - max_runs_retained FROM session WHERE session_pk = NEW.session_pk);
END;
CREATE TRIGGER run_identity_no_replace BEFORE INSERT ON run_identity
WHEN EXISTS(SELECT 1 FROM run_identity
            WHERE run_pk = NEW.run_pk OR run_id = NEW.run_id OR resumed_from = NEW.resumed_from) BEGIN
  SELECT RAISE(ABORT, 'thence:RUN_EXISTS this run id is taken, or that run was already resumed');
END;
CREATE TRIGGER run_identity_no_update BEFORE UPDATE ON run_identity BEGIN
  SELECT RAISE(ABORT, 'thence:RUN_EXISTS a run id means what it meant');
END;
CREATE TRIGGER run_identity_no_delete BEFORE DELETE ON run_identity
WHEN EXISTS(SELECT 1 FROM session WHERE session_pk = OLD.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:RUN_EXISTS a run id lives as long as its session');
END;
CREATE TRIGGER run_deleted AFTER DELETE ON run BEGIN
  DELETE FROM wait WHERE run_pk = OLD.run_pk AND closed_ms IS NOT NULL;  -- an open one is the next run's
  DELETE FROM stream WHERE stream_pk = OLD.run_pk;
  DELETE FROM checkpoint WHERE run_pk = OLD.run_pk;
END;

-- ------------------------------------------------------------------ events: numbered by their stream, FIFO by count and bytes
CREATE TRIGGER stream_no_replace BEFORE INSERT ON stream
WHEN EXISTS(SELECT 1 FROM stream WHERE stream_pk = NEW.stream_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:STREAM_EXISTS this stream has its numbers');
END;
-- What events that wait count by; the counters of numbered events are moved with each of these, and are not guarded.
CREATE TRIGGER stream_waiting BEFORE UPDATE OF stream_pk, session_pk, waiting_count, waiting_bytes, waiting_dropped ON stream
WHEN NEW.stream_pk IS NOT OLD.stream_pk OR NEW.session_pk IS NOT OLD.session_pk OR NEW.waiting_count < OLD.waiting_count
  OR NEW.waiting_bytes < OLD.waiting_bytes OR NEW.waiting_dropped < OLD.waiting_dropped BEGIN
  SELECT RAISE(ABORT, 'thence:STREAM_EXISTS the numbers of a stream only grow');
END;
CREATE TRIGGER stream_deleted AFTER DELETE ON stream BEGIN
  DELETE FROM event   WHERE id BETWEEN OLD.stream_pk << 32 AND OLD.stream_pk << 32 | 4294967295;
  DELETE FROM delta   WHERE id BETWEEN OLD.stream_pk << 32 AND OLD.stream_pk << 32 | 4294967295;
  DELETE FROM inbox   WHERE stream_pk = OLD.stream_pk AND kind = 'event';
  DELETE FROM request WHERE stream_pk = OLD.stream_pk;
END;
-- An event of a run that was evicted meanwhile is dropped in silence; one with a stale fence is refused.
CREATE TRIGGER event_fence BEFORE INSERT ON event
WHEN NEW.fence IS NOT (SELECT s.fence FROM stream t JOIN session s ON s.session_pk = t.session_pk
                       WHERE t.stream_pk = NEW.id >> 32) BEGIN
  SELECT CASE WHEN EXISTS(SELECT 1 FROM stream WHERE stream_pk = NEW.id >> 32)
    THEN RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on an event') ELSE RAISE(IGNORE) END;
END;
-- One event larger than the whole byte cap is counted, not kept, and pushes nothing out that the caps allow without it.
CREATE TRIGGER event_too_large AFTER INSERT ON event
WHEN NEW.bytes > (SELECT s.max_event_bytes_per_run FROM stream t JOIN session s ON s.session_pk = t.session_pk
                  WHERE t.stream_pk = NEW.id >> 32) BEGIN
  UPDATE stream SET event_count = max(event_count, (NEW.id & 4294967295) + 1), last_ms = max(last_ms, NEW.ts_ms)
    WHERE stream_pk = NEW.id >> 32;
  DELETE FROM event WHERE id = NEW.id;
  DELETE FROM event WHERE id >= (NEW.id >> 32) << 32 AND id < (
    SELECT max(coalesce(NEW.id - s.max_events_per_run, 0 - 9223372036854775807),
               coalesce((SELECT e.id FROM event e WHERE e.id BETWEEN (NEW.id >> 32) << 32 AND NEW.id
                           AND e.off >= NEW.off - s.max_event_bytes_per_run ORDER BY e.id LIMIT 1), NEW.id))
    FROM stream t JOIN session s ON s.session_pk = t.session_pk WHERE t.stream_pk = NEW.id >> 32);
END;
CREATE TRIGGER event_added AFTER INSERT ON event
WHEN (NEW.bytes > (SELECT s.max_event_bytes_per_run FROM stream t JOIN session s ON s.session_pk = t.session_pk
                   WHERE t.stream_pk = NEW.id >> 32)) IS NOT 1 BEGIN
  UPDATE stream SET event_count = max(event_count, (NEW.id & 4294967295) + 1),
    event_bytes = max(event_bytes, NEW.off + NEW.bytes), last_ms = max(last_ms, NEW.ts_ms) WHERE stream_pk = NEW.id >> 32;
  DELETE FROM event WHERE id >= (NEW.id >> 32) << 32 AND id < (
    SELECT max(coalesce(NEW.id + 1 - s.max_events_per_run, 0 - 9223372036854775807),
               CASE WHEN NEW.off + NEW.bytes > s.max_event_bytes_per_run THEN
                 (SELECT e.id FROM event e WHERE e.id >= (NEW.id >> 32) << 32
                    AND e.off >= NEW.off + NEW.bytes - s.max_event_bytes_per_run ORDER BY e.id LIMIT 1)
               ELSE 0 - 9223372036854775807 END)
    FROM stream t JOIN session s ON s.session_pk = t.session_pk WHERE t.stream_pk = NEW.id >> 32);
END;

CREATE TRIGGER trace_fence BEFORE INSERT ON trace
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = NEW.id >> 32) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a trace');
END;
CREATE TRIGGER trace_added AFTER INSERT ON trace BEGIN
  DELETE FROM trace WHERE id >= (NEW.id >> 32) << 32
    AND id <= NEW.id - (SELECT max_trace_events FROM session WHERE session_pk = NEW.id >> 32);
END;

-- ------------------------------------------------------------------ tasks: finished ones go by the time they finished
CREATE TRIGGER task_fence BEFORE INSERT ON task
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = NEW.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a task');
END;
CREATE TRIGGER task_fence_update BEFORE UPDATE ON task
WHEN NEW.fence IS NOT (SELECT fence FROM session WHERE session_pk = OLD.session_pk) BEGIN
  SELECT RAISE(ABORT, 'thence:OWNERSHIP_LOST stale fence on a task');
END;
CREATE TRIGGER task_no_replace BEFORE INSERT ON task
WHEN EXISTS(SELECT 1 FROM task
            WHERE task_pk = NEW.task_pk OR (session_pk = NEW.session_pk AND task_id = NEW.task_id)) BEGIN
  SELECT RAISE(ABORT, 'thence:TASK_EXISTS task exists');
END;
CREATE TRIGGER task_cancelled_is_final BEFORE UPDATE OF status ON task
WHEN OLD.finished_ms IS NOT NULL AND NEW.status IS NOT OLD.status BEGIN
  SELECT RAISE(IGNORE);
END;
CREATE TRIGGER task_finished_insert AFTER INSERT ON task WHEN NEW.finished_ms IS NOT NULL BEGIN
  UPDATE session SET terminal_tasks = terminal_tasks + 1 WHERE session_pk = NEW.session_pk;
  DELETE FROM task WHERE task_pk IN (SELECT task_pk FROM task
    WHERE session_pk = NEW.session_pk AND finished_ms IS NOT NULL ORDER BY finished_ms, task_pk
    LIMIT (SELECT max(0, coalesce(terminal_tasks - max_terminal_subagent_tasks, 0)) FROM session
           WHERE session_pk = NEW.session_pk));
END;
CREATE TRIGGER task_finished_update AFTER UPDATE OF finished_ms ON task
WHEN NEW.finished_ms IS NOT NULL AND OLD.finished_ms IS NULL BEGIN
  UPDATE session SET terminal_tasks = terminal_tasks + 1 WHERE session_pk = NEW.session_pk;
  DELETE FROM task WHERE task_pk IN (SELECT task_pk FROM task
    WHERE session_pk = NEW.session_pk AND finished_ms IS NOT NULL ORDER BY finished_ms, task_pk
    LIMIT (SELECT max(0, coalesce(terminal_tasks - max_terminal_subagent_tasks, 0)) FROM session
           WHERE session_pk = NEW.session_pk));
END;
CREATE TRIGGER task_deleted AFTER DELETE ON task WHEN OLD.finished_ms IS NOT NULL BEGIN
  UPDATE session SET terminal_tasks = terminal_tasks - 1 WHERE session_pk = OLD.session_pk;
END;

-- ------------------------------------------------------------------ the inbox: known requests ignored, waiting events capped
CREATE TRIGGER inbox_known BEFORE INSERT ON inbox
WHEN EXISTS(SELECT 1 FROM request WHERE session_pk = NEW.session_pk AND request_id = NEW.request_id)
  OR NOT EXISTS(SELECT 1 FROM stream WHERE stream_pk = NEW.stream_pk AND session_pk = NEW.session_pk) BEGIN
  SELECT RAISE(IGNORE);
END;
CREATE TRIGGER inbox_remember AFTER INSERT ON inbox WHEN NEW.request_id IS NOT NULL BEGIN
  INSERT INTO request(session_pk, request_id, stream_pk, taken_no)
    VALUES(NEW.session_pk, NEW.request_id, NEW.stream_pk, NEW.waiting_no);
  DELETE FROM request WHERE stream_pk = NEW.stream_pk AND stream_pk < 0
    AND taken_no <= NEW.waiting_no - (SELECT max(max_events_per_run, 1) FROM session WHERE session_pk = NEW.session_pk);
END;
-- A finished run has no owner that could number its events: nobody else does, so SQLite may, at once (never past an
-- older one that still waits). All others wait, in the same window as events: by number, by offset, one above the
-- byte cap alone. One trigger, because SQLite promises no order between several.
CREATE TRIGGER inbox_event AFTER INSERT ON inbox WHEN NEW.kind = 'event' BEGIN
  DELETE FROM inbox WHERE inbox_pk = NEW.inbox_pk
    AND (SELECT owner FROM session WHERE session_pk = NEW.session_pk) IS NULL
    AND NOT EXISTS(SELECT 1 FROM run WHERE run_pk = NEW.stream_pk
                   AND status NOT IN ('completed', 'failed', 'cancelled')
                   AND NOT EXISTS(SELECT 1 FROM run_identity i WHERE i.resumed_from = NEW.stream_pk))
    AND NOT EXISTS(SELECT 1 FROM inbox o WHERE o.stream_pk = NEW.stream_pk AND o.kind = 'event'
                   AND o.waiting_no < NEW.waiting_no);
  INSERT INTO event(id, off, bytes, fence, ts_ms, type, payload)
    SELECT t.stream_pk << 32 | t.event_count, t.event_bytes, NEW.bytes, s.fence, max(NEW.ts_ms, t.last_ms),
           NEW.type, NEW.payload
    FROM stream t JOIN session s ON s.session_pk = t.session_pk
    WHERE t.stream_pk = NEW.stream_pk AND NOT EXISTS(SELECT 1 FROM inbox WHERE inbox_pk = NEW.inbox_pk);
  DELETE FROM inbox WHERE inbox_pk = NEW.inbox_pk
    AND NEW.bytes > (SELECT max_event_bytes_per_run FROM session WHERE session_pk = NEW.session_pk);
  UPDATE stream SET waiting_dropped = waiting_dropped + changes(), waiting_count = NEW.waiting_no + 1,
    waiting_bytes = NEW.off + NEW.bytes * EXISTS(SELECT 1 FROM inbox WHERE inbox_pk = NEW.inbox_pk)
    WHERE stream_pk = NEW.stream_pk;
  DELETE FROM inbox WHERE stream_pk = NEW.stream_pk AND kind = 'event' AND waiting_no < (
    SELECT max(coalesce(NEW.waiting_no + (t.waiting_bytes > NEW.off) - s.max_events_per_run, 0),
               CASE WHEN t.waiting_bytes > s.max_event_bytes_per_run THEN
                 coalesce((SELECT w.waiting_no FROM inbox w WHERE w.stream_pk = NEW.stream_pk AND w.kind = 'event'
                             AND w.off >= t.waiting_bytes - s.max_event_bytes_per_run ORDER BY w.waiting_no LIMIT 1),
                          NEW.waiting_no)
               ELSE 0 END)
    FROM stream t JOIN session s ON s.session_pk = t.session_pk WHERE t.stream_pk = NEW.stream_pk);
  UPDATE stream SET waiting_dropped = waiting_dropped + changes() WHERE stream_pk = NEW.stream_pk;
END;

-- The door for other programs: INSERT INTO event_in(run_id, type, payload) VALUES (...), or session_id for the
-- session's own channel. Bad input is refused by name; a known request_id is ignored; caps never refuse.
CREATE TRIGGER event_in_insert INSTEAD OF INSERT ON event_in BEGIN
  SELECT CASE
    -- no cap counts these two texts
    WHEN typeof(NEW.type) <> 'text' OR length(CAST(NEW.type AS BLOB)) > 200 OR trim(NEW.type) = ''
      OR instr(NEW.type, char(0)) > 0
      OR NEW.type GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
      THEN RAISE(ABORT, 'thence:BAD_INPUT type must be a text of 1 to 200 bytes, not blank, no control characters')
    WHEN NEW.payload IS NULL OR typeof(NEW.payload) <> 'text' OR NOT json_valid(NEW.payload)
      OR instr(NEW.payload, char(0)) > 0
      THEN RAISE(ABORT, 'thence:BAD_INPUT payload must be JSON text')
    WHEN json_type(NEW.payload) <> 'object'
      THEN RAISE(ABORT, 'thence:BAD_INPUT payload must be a JSON object')
    WHEN NEW.request_id IS NOT NULL AND (
        typeof(NEW.request_id) <> 'text' OR length(CAST(NEW.request_id AS BLOB)) > 1000 OR trim(NEW.request_id) = ''
        OR instr(NEW.request_id, char(0)) > 0
        OR NEW.request_id GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
      THEN RAISE(ABORT, 'thence:BAD_INPUT request_id must be absent, or a text as type, of 1 to 1000 bytes')
    -- SQLite reads bytes that are no UTF-8 as U+FFFD (most of them: readers decode what slips through)
    WHEN NEW.type || NEW.payload || coalesce(NEW.request_id, '') GLOB '*' || char(65533) || '*'
      AND instr(NEW.type || NEW.payload || coalesce(NEW.request_id, ''), char(65533)) = 0
      AND instr(NEW.type || NEW.payload || coalesce(NEW.request_id, ''), char(65534)) = 0
      AND instr(NEW.type || NEW.payload || coalesce(NEW.request_id, ''), char(65535)) = 0
      THEN RAISE(ABORT, 'thence:BAD_INPUT type, payload and request_id must be UTF-8')
    -- times of a stream never go back: one far ahead would be that of all that come later
    WHEN NEW.ts_ms IS NOT NULL AND (typeof(NEW.ts_ms) <> 'integer' OR NEW.ts_ms NOT BETWEEN 0 AND 253402300799999)
      THEN RAISE(ABORT, 'thence:BAD_INPUT ts_ms must be absent, or milliseconds from the year 1970 to 9999')
    WHEN NEW.run_id IS NULL AND NEW.session_id IS NULL
      THEN RAISE(ABORT, 'thence:BAD_INPUT run_id or session_id must be given')
    WHEN NEW.run_id IS NULL AND NOT EXISTS(SELECT 1 FROM session WHERE session_id = NEW.session_id)
      THEN RAISE(ABORT, 'thence:NOT_FOUND no such session')
    WHEN NEW.run_id IS NOT NULL AND NOT EXISTS(
        SELECT 1 FROM run_identity i JOIN session s ON s.session_pk = i.session_pk
        WHERE i.run_id = NEW.run_id AND (NEW.session_id IS NULL OR NEW.session_id = s.session_id))
      THEN RAISE(ABORT, 'thence:NOT_FOUND no such run')
    END;
  INSERT INTO inbox(session_pk, stream_pk, kind, request_id, waiting_no, off, bytes, ts_ms, type, payload)
    SELECT t.session_pk, t.stream_pk, 'event', NEW.request_id, t.waiting_count, t.waiting_bytes,
           length(CAST(NEW.payload AS BLOB)),
           coalesce(NEW.ts_ms, CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)), NEW.type, NEW.payload
    FROM stream t
    WHERE t.stream_pk = CASE WHEN NEW.run_id IS NOT NULL
        THEN (SELECT run_pk FROM run_identity WHERE run_id = NEW.run_id)
        ELSE (SELECT -session_pk FROM session WHERE session_id = NEW.session_id) END;
END;
