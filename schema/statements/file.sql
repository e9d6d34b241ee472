-- name: file_add
-- With the first session: the file's own identity. Later sessions change nothing.
INSERT INTO file(file_pk, lineage_id, created_ms, allow_network_fs)
SELECT 1, :lineage_id, :created_ms, :allow_network_fs WHERE NOT EXISTS(SELECT 1 FROM file);

-- name: file_row
-- The file's identity, if it has a session.
SELECT lineage_id, created_ms, generation, allow_network_fs FROM file;
