-- name: branch_first
-- The first branch of a new session: an empty log.
INSERT INTO branch(session_pk, first_seq, head_seq, head_hash)
SELECT session_pk, 1, 0, zeroblob(32) FROM session WHERE session_id = :session_id;

-- name: branch_head
-- How far a branch has come.
SELECT session_pk, head_seq, head_hash, first_seq, parent_pk FROM branch WHERE branch_pk = :branch_pk;
