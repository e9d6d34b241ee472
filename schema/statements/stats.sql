-- name: stats
-- How much is in the file.
SELECT (SELECT count(*) FROM session), (SELECT count(*) FROM run_identity), (SELECT count(*) FROM run),
  (SELECT count(*) FROM fact), (SELECT count(*) FROM event), (SELECT count(*) FROM trace),
  (SELECT count(*) FROM blob), (SELECT coalesce(sum(size), 0) FROM blob), (SELECT count(*) FROM inbox),
  (SELECT count(*) FROM inflight), (SELECT count(*) FROM checkpoint);
