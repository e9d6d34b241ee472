-- name: fact_append
-- One fact at the head of its branch. The same fact already there is a no-op; anything else there is refused by the
-- triggers, which also move the head. `run_id` finds the run when its number is not known yet.
INSERT INTO fact(id, run_pk, fence, ts_ms, kind, key, cause, prev_hash, hash, blobs, payload)
SELECT :branch_pk << 32 | :seq, coalesce(:run_pk, (SELECT run_pk FROM run_identity WHERE run_id = :run_id)), :fence,
  :ts_ms, :kind, :key, :cause, :prev_hash, :hash, :blobs, :payload
WHERE NOT EXISTS(SELECT 1 FROM fact WHERE id = :branch_pk << 32 | :seq AND hash = :hash);

-- name: fact_list
-- A page of the visible facts of a branch, in order: the stretches of its ancestors, then its own. A branch sees each
-- seq once, so a range of seqs bounds the page.
SELECT f.seq, f.kind, f.key, f.cause, i.run_id, f.prev_hash, f.hash, f.payload
FROM (SELECT ancestor_pk AS source_pk, first_seq, last_seq FROM ancestry WHERE branch_pk = :branch_pk
      UNION ALL SELECT :branch_pk, 1, 4294967295) v
JOIN fact f ON f.id BETWEEN v.source_pk << 32 | max(v.first_seq, :after_seq + 1) AND v.source_pk << 32 | min(v.last_seq, :up_to_seq)
LEFT JOIN run_identity i ON i.run_pk = f.run_pk
ORDER BY f.seq;

-- name: fact_page
-- The same page for whoever folds it: without run ids, and in the order in which it comes (the reader sorts).
SELECT f.seq, f.kind, f.key, f.cause, NULL, f.prev_hash, f.hash, f.payload
FROM (SELECT ancestor_pk AS source_pk, first_seq, last_seq FROM ancestry WHERE branch_pk = :branch_pk
      UNION ALL SELECT :branch_pk, 1, 4294967295) v
JOIN fact f ON f.id BETWEEN v.source_pk << 32 | max(v.first_seq, :after_seq + 1) AND v.source_pk << 32 | min(v.last_seq, :up_to_seq);

-- name: fact_blobs
-- The blobs that the payloads of those facts name.
SELECT DISTINCT b.sha256, b.bytes
FROM (SELECT ancestor_pk AS source_pk, first_seq, last_seq FROM ancestry WHERE branch_pk = :branch_pk
      UNION ALL SELECT :branch_pk, 1, 4294967295) v
JOIN fact f ON f.id BETWEEN v.source_pk << 32 | max(v.first_seq, :after_seq + 1) AND v.source_pk << 32 | min(v.last_seq, :up_to_seq)
  AND f.blobs IS NOT NULL
JOIN json_each(f.blobs) j
JOIN blob b ON b.sha256 = j.value;

-- name: fact_by_key
-- One visible fact of a branch by its key: of its own, or of an ancestor's stretch.
SELECT f.seq, f.kind, f.key, f.cause, i.run_id, f.prev_hash, f.hash, f.payload
FROM fact f LEFT JOIN run_identity i ON i.run_pk = f.run_pk
WHERE f.branch_pk = :branch_pk AND f.key = :key
UNION ALL
SELECT f.seq, f.kind, f.key, f.cause, i.run_id, f.prev_hash, f.hash, f.payload
FROM ancestry a JOIN fact f ON f.branch_pk = a.ancestor_pk AND f.key = :key
LEFT JOIN run_identity i ON i.run_pk = f.run_pk
WHERE a.branch_pk = :branch_pk AND f.seq BETWEEN a.first_seq AND a.last_seq
LIMIT 1;

-- name: fact_by_key_blobs
-- The blobs that its payload names.
SELECT b.sha256, b.bytes FROM fact f JOIN json_each(f.blobs) j JOIN blob b ON b.sha256 = j.value
WHERE f.key = :key AND f.blobs IS NOT NULL
  AND (f.branch_pk = :branch_pk OR f.branch_pk IN (SELECT ancestor_pk FROM ancestry WHERE branch_pk = :branch_pk));

-- name: fact_newest_compaction
-- The newest visible compaction of a branch, and where what it kept stands. By the index of compactions, however long
-- the log is: the newest of each stretch, then the newest of those.
SELECT f.seq, json_extract(f.text, '$.kept_from'), json_extract(f.text, '$.kept_message')
FROM (SELECT id, seq, CASE WHEN json_valid(payload) THEN payload ELSE '{}' END AS text FROM fact) f
WHERE f.id = (
  SELECT c.id
  FROM (SELECT (SELECT max(n.id) FROM fact n WHERE n.kind = 'compaction.done'
                AND n.id BETWEEN v.source_pk << 32 | v.first_seq AND v.source_pk << 32 | v.last_seq) AS id
        FROM (SELECT ancestor_pk AS source_pk, first_seq, last_seq FROM ancestry WHERE branch_pk = :branch_pk
              UNION ALL SELECT :branch_pk, 1, 4294967295) v) c
  ORDER BY c.id & 4294967295 DESC LIMIT 1);
