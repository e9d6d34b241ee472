-- name: inbox_add
-- What somebody who is not the owner wants to say about a run, or about a session's channel.
INSERT INTO inbox(session_pk, stream_pk, kind, request_id, waiting_no, off, bytes, ts_ms, type, payload)
SELECT t.session_pk, t.stream_pk, :kind, :request_id, t.waiting_count, t.waiting_bytes,
  length(CAST(:payload AS BLOB)), :ts_ms, :type, :payload
FROM stream t WHERE t.stream_pk = :stream_pk;

-- name: inbox_list
-- What waits for the owner, oldest first.
SELECT inbox_pk, stream_pk, kind, request_id, type, payload FROM inbox
WHERE session_pk = :session_pk ORDER BY inbox_pk LIMIT :limit;

-- name: inbox_remove
-- It has been said, by the one who still owns the session: an owner that was displaced takes nothing away.
DELETE FROM inbox WHERE inbox_pk = :inbox_pk
  AND EXISTS(SELECT 1 FROM session s WHERE s.session_pk = inbox.session_pk AND s.fence = :fence);
