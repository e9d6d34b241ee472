-- name: owner_add
-- A process that runs sessions here; its kernel lock says whether it lives.
INSERT INTO owner(owner, pid, program, since_ms) VALUES(:owner, :pid, :program, :since_ms);

-- name: owner_remove
-- It closed, or was found dead.
DELETE FROM owner WHERE owner = :owner;

-- name: owner_list
-- Everybody who said they run sessions here.
SELECT owner, pid, program, since_ms FROM owner ORDER BY since_ms, owner;
