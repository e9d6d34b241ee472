-- What the store itself asks of SQLite; everything about sessions is in schema/statements.

-- name: object_list
-- The whole schema of a file, to compare with ours before anything else is read.
SELECT type, name, tbl_name, sql FROM sqlite_schema;

-- name: object_text
-- The same in one order, so that a migrated file can be compared with a fresh one.
SELECT type, name, sql FROM sqlite_schema ORDER BY type, name;

-- name: row_changes
-- Rows changed by a statement whose first word does not tell the driver that it changes any.
SELECT changes();

-- name: json_probe
-- Fails under trusted_schema=OFF where SQLite calls json_valid unsafe.
CREATE TABLE t(x CHECK(json_valid(x)));
