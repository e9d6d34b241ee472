-- name: stream_add
-- The numbering of a run's events.
INSERT INTO stream(stream_pk, session_pk) SELECT run_pk, session_pk FROM run_identity WHERE run_id = :run_id;

-- name: stream_add_channel
-- The numbering of a session's own channel.
INSERT INTO stream(stream_pk, session_pk) SELECT -session_pk, session_pk FROM session WHERE session_id = :session_id;

-- name: event_append
-- One event with the next number of its stream; times of a stream never go back. `run_id` finds the stream when its
-- number is not known yet.
INSERT INTO event(id, off, bytes, fence, ts_ms, type, payload)
SELECT stream_pk << 32 | event_count, event_bytes, length(CAST(:payload AS BLOB)), :fence, max(:ts_ms, last_ms),
  :type, :payload
FROM stream WHERE stream_pk = coalesce(:stream_pk, (SELECT run_pk FROM run_identity WHERE run_id = :run_id));

-- name: event_take
-- An event that waited in the inbox gets its number, byte for byte as it came.
INSERT INTO event(id, off, bytes, fence, ts_ms, type, payload)
SELECT t.stream_pk << 32 | t.event_count, t.event_bytes, length(CAST(i.payload AS BLOB)), :fence,
  max(:ts_ms, t.last_ms), i.type, i.payload
FROM inbox i JOIN stream t ON t.stream_pk = i.stream_pk WHERE i.inbox_pk = :inbox_pk;

-- name: event_page
-- Events of a stream after a cursor. Texts are read as bytes: a damaged one must not hide the others.
SELECT e.sequence, CAST(e.type AS BLOB), e.ts_ms, CAST(e.payload AS BLOB) FROM event e
WHERE e.id > :stream_pk << 32 | :after AND e.id <= :stream_pk << 32 | 4294967295 ORDER BY e.id LIMIT :limit;

-- name: event_page_from_start
-- The same, from the oldest event that is kept.
SELECT e.sequence, CAST(e.type AS BLOB), e.ts_ms, CAST(e.payload AS BLOB) FROM event e
WHERE e.id BETWEEN :stream_pk << 32 AND :stream_pk << 32 | 4294967295 ORDER BY e.id LIMIT :limit;

-- name: stream_span
-- What is kept of a stream: its first sequence, and one past its last ever.
SELECT (SELECT e.sequence FROM event e WHERE e.id BETWEEN t.stream_pk << 32 AND t.stream_pk << 32 | 4294967295
        ORDER BY e.id LIMIT 1), t.event_count
FROM stream t WHERE t.stream_pk = :stream_pk;

-- name: stream_end
-- Whether a run's stream can still grow: its status, whether it was superseded, and who has its session.
SELECT r.status, EXISTS(SELECT 1 FROM run_identity n WHERE n.resumed_from = r.run_pk), s.owner
FROM run r JOIN session s ON s.session_pk = r.session_pk WHERE r.run_pk = :stream_pk;

-- name: delta_add
-- Pieces of an answer that is still being written, for readers elsewhere.
INSERT INTO delta(id, fence, step, type, payload)
VALUES(:stream_pk << 32 | :number, :fence, :step, :type, :payload);

-- name: delta_clear
-- The answer or the result is recorded: its pieces are void.
DELETE FROM delta WHERE id BETWEEN :stream_pk << 32 AND :stream_pk << 32 | 4294967295 AND step = :step;

-- name: delta_clear_all
-- The run parks: whoever goes on numbers its pieces anew.
DELETE FROM delta WHERE id BETWEEN :stream_pk << 32 AND :stream_pk << 32 | 4294967295;

-- name: delta_list
-- Provisional pieces after a cursor.
SELECT number, CAST(step AS BLOB), CAST(type AS BLOB), CAST(payload AS BLOB) FROM delta
WHERE id > :stream_pk << 32 | :after AND id <= :stream_pk << 32 | 4294967295 ORDER BY id LIMIT :limit;
