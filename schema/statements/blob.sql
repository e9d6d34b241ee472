-- name: blob_add
-- Once in the file, whoever needs it.
INSERT INTO blob(sha256, size, bytes) SELECT :sha256, :size, :bytes
WHERE NOT EXISTS(SELECT 1 FROM blob WHERE sha256 = :sha256);

-- name: blob_ref_add
-- This session needs it: it lives as long as the last session that does.
INSERT INTO blob_ref(session_pk, sha256) SELECT :session_pk, :sha256
WHERE NOT EXISTS(SELECT 1 FROM blob_ref WHERE session_pk = :session_pk AND sha256 = :sha256);

-- name: blob_get
-- The bytes of one blob that this session refers to.
SELECT b.bytes FROM blob_ref r JOIN blob b ON b.sha256 = r.sha256
WHERE r.session_pk = :session_pk AND r.sha256 = :sha256;
