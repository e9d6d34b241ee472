-- name: inbox_add
-- What somebody who is not the owner wants to say about a run, or about a session's channel.
INSERT INTO inbox(session_pk, stream_pk, kind, request_id, waiting_no, off, bytes, ts_ms, type, payload)
SELECT t.session_pk, t.stream_pk, :kind, :request_id, t.waiting_count, t.waiting_bytes,
  length(CAST(:payload AS BLOB)), :ts_ms, :type, :payload
FROM stream t WHERE t.stream_pk = :stream_pk;

-- name: inbox_steer
-- A message for a run that somebody works on: nothing for one that has ended, is parked, was let go or superseded.
INSERT INTO inbox(session_pk, stream_pk, kind, request_id, waiting_no, off, bytes, ts_ms, type, payload)
SELECT t.session_pk, t.stream_pk, 'steer', :request_id, t.waiting_count, t.waiting_bytes,
  length(CAST(:payload AS BLOB)), :ts_ms, 'steer', :payload
FROM stream t JOIN run r ON r.run_pk = t.stream_pk JOIN session s ON s.session_pk = t.session_pk
WHERE t.stream_pk = :stream_pk AND s.owner IS NOT NULL
  AND r.status NOT IN ('completed', 'failed', 'cancelled', 'parked')
  AND NOT EXISTS(SELECT 1 FROM run_identity n WHERE n.resumed_from = r.run_pk)
RETURNING inbox_pk;

-- name: inbox_list
-- What waits for the owner, oldest first; messages aside, which wait until the turn can take them. Texts of other
-- programs are read as bytes: one that is no UTF-8 must not hide the others.
SELECT inbox_pk, stream_pk, kind, CAST(type AS BLOB), CAST(payload AS BLOB) FROM inbox
WHERE session_pk = :session_pk AND kind <> 'steer' ORDER BY inbox_pk LIMIT :limit;

-- name: inbox_steered
-- Whether a message waits for the turn that is open.
SELECT EXISTS(SELECT 1 FROM inbox WHERE session_pk = :session_pk AND kind = 'steer');

-- name: inbox_steers
-- Messages for the turn that is open, oldest first.
SELECT inbox_pk, CAST(request_id AS BLOB), CAST(payload AS BLOB) FROM inbox
WHERE session_pk = :session_pk AND kind = 'steer' ORDER BY inbox_pk LIMIT :limit;

-- name: request_known
-- Whether a request id was taken before.
SELECT EXISTS(SELECT 1 FROM request WHERE session_pk = :session_pk AND request_id = :request_id);

-- name: inbox_forget_steers
-- The turn that the messages were for is over.
DELETE FROM inbox WHERE session_pk = :session_pk AND kind = 'steer'
  AND EXISTS(SELECT 1 FROM session s WHERE s.session_pk = :session_pk AND s.fence = :fence);

-- name: inbox_remove
-- It has been said, by the one who still owns the session: an owner that was displaced takes nothing away.
DELETE FROM inbox WHERE inbox_pk = :inbox_pk
  AND EXISTS(SELECT 1 FROM session s WHERE s.session_pk = inbox.session_pk AND s.fence = :fence);
