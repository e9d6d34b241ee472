-- name: stats
-- How much is in the file.
SELECT (SELECT count(*) FROM session), (SELECT count(*) FROM run_identity), (SELECT count(*) FROM run),
  (SELECT count(*) FROM fact), (SELECT count(*) FROM event), (SELECT count(*) FROM trace),
  (SELECT count(*) FROM blob), (SELECT coalesce(sum(size), 0) FROM blob), (SELECT count(*) FROM inbox),
  (SELECT count(*) FROM inflight), (SELECT count(*) FROM checkpoint);

-- name: waiting_count
-- What nobody has answered yet, and what waits for an owner.
SELECT (SELECT count(*) FROM wait w WHERE w.closed_ms IS NULL
        AND NOT EXISTS(SELECT 1 FROM wait_answer a WHERE a.wait_pk = w.wait_pk)), (SELECT count(*) FROM inbox);

-- name: journal_mode
-- How the file is written: anything but WAL is a finding.
PRAGMA journal_mode;
