-- name: branch_first
-- The first branch of a new session: an empty log.
INSERT INTO branch(session_pk, first_seq, head_seq, head_hash)
SELECT session_pk, 1, 0, zeroblob(32) FROM session WHERE session_id = :session_id;

-- name: branch_head
-- How far a branch has come.
SELECT session_pk, head_seq, head_hash, first_seq, parent_pk FROM branch WHERE branch_pk = :branch_pk;

-- name: branch_fork
-- A new branch of the session that goes on where its live branch has got to.
INSERT INTO branch(session_pk, parent_pk, first_seq, head_seq, head_hash)
SELECT b.session_pk, b.branch_pk, b.head_seq + 1, b.head_seq, b.head_hash
FROM session s JOIN branch b ON b.branch_pk = s.live_branch WHERE s.session_pk = :session_pk
RETURNING branch_pk;

-- name: ancestry_fork
-- What the newest branch sees of older ones: all that its parent saw, and the parent's own facts.
INSERT INTO ancestry(branch_pk, ancestor_pk, first_seq, last_seq)
SELECT n.branch_pk, a.ancestor_pk, a.first_seq, a.last_seq
FROM (SELECT max(branch_pk) AS branch_pk FROM branch WHERE session_pk = :session_pk) n
JOIN branch b ON b.branch_pk = n.branch_pk JOIN ancestry a ON a.branch_pk = b.parent_pk
UNION ALL
SELECT n.branch_pk, p.branch_pk, p.first_seq, p.head_seq
FROM (SELECT max(branch_pk) AS branch_pk FROM branch WHERE session_pk = :session_pk) n
JOIN branch b ON b.branch_pk = n.branch_pk JOIN branch p ON p.branch_pk = b.parent_pk
WHERE p.head_seq >= p.first_seq;
