-- Who may load, read and drop.
CREATE ROLE regress_owner;
CREATE ROLE regress_loader;
CREATE ROLE regress_reader;
CREATE ROLE regress_stranger;
CREATE SCHEMA closed AUTHORIZATION regress_owner;
GRANT USAGE ON SCHEMA closed TO regress_loader, regress_reader, regress_stranger;
SET ROLE regress_owner;
CREATE TABLE closed.wages (id integer, wage integer, spare integer);
INSERT INTO closed.wages SELECT i, i * 100, 0 FROM generate_series(1, 10) i;
GRANT SELECT (id, wage) ON closed.wages TO regress_loader;
GRANT SELECT ON closed.wages TO regress_reader;
-- Filling the device is granted apart from reading tables, not even to the owner of one.
SELECT gpumem.load('wage', 'closed.wages', 'wage');
SELECT gpumem.drop('wage');
RESET ROLE;
GRANT EXECUTE ON FUNCTION gpumem.load(text, regclass, name), gpumem.drop(text) TO regress_loader, regress_stranger;
SET ROLE regress_stranger;
SELECT gpumem.load('wage', 'closed.wages', 'wage');
SET ROLE regress_loader;
SELECT gpumem.load('spare', 'closed.wages', 'spare');
SELECT gpumem.load('wage', 'closed.wages', 'wage');
-- Reading needs SELECT on the column of the table, at the time of reading.
SELECT gpumem.sum('wage');
SET ROLE regress_reader;
SELECT gpumem.sum('wage'), (SELECT count(*) FROM gpumem.filter('wage', '>', 500));
SELECT name, rows, loader FROM gpumem.columns();
SET ROLE regress_stranger;
SELECT gpumem.sum('wage');
SELECT gpumem.filter('wage', '=', 100);
SELECT * FROM gpumem.attach_times('wage');
SELECT count(*) FROM gpumem.columns();
-- Nor may others replace or drop it.
SELECT gpumem.drop('wage');
RESET ROLE;
CREATE TABLE public_numbers (i integer);
GRANT SELECT ON public_numbers TO PUBLIC;
SET ROLE regress_stranger;
SELECT gpumem.load('wage', 'public_numbers', 'i');
-- Rights that are taken away count at once.
RESET ROLE;
REVOKE USAGE ON SCHEMA closed FROM regress_reader;
SET ROLE regress_reader;
SELECT gpumem.sum('wage');
RESET ROLE;
GRANT USAGE ON SCHEMA closed TO regress_reader;
REVOKE SELECT ON closed.wages FROM regress_reader;
SET ROLE regress_reader;
SELECT gpumem.sum('wage');
RESET ROLE;
GRANT SELECT ON closed.wages TO regress_reader;
-- A view gives no right to what it is made of: the function runs as its caller.
CREATE VIEW wage_sum AS SELECT gpumem.sum('wage');
GRANT SELECT ON wage_sum TO regress_stranger;
SET ROLE regress_stranger;
SELECT * FROM wage_sum;
RESET ROLE;
-- Row-level security.
ALTER TABLE closed.wages ENABLE ROW LEVEL SECURITY;
SET ROLE regress_reader;
SELECT gpumem.sum('wage');
SET ROLE regress_loader;
SELECT gpumem.load('wage', 'closed.wages', 'wage');
SET ROLE regress_owner;
SELECT gpumem.sum('wage');
RESET ROLE;
ALTER TABLE closed.wages DISABLE ROW LEVEL SECURITY;
-- A column or table that is gone cannot be read; who loaded it drops it.
SET ROLE regress_loader;
SELECT gpumem.load('id', 'closed.wages', 'id');
RESET ROLE;
ALTER TABLE closed.wages DROP COLUMN wage;
SET ROLE regress_reader;
SELECT gpumem.sum('wage');
SELECT name FROM gpumem.columns();
RESET ROLE;
DROP TABLE closed.wages;
SELECT gpumem.sum('id');
SET ROLE regress_loader;
SELECT name, "column" FROM gpumem.columns();
SELECT gpumem.drop('wage'), gpumem.drop('id');
RESET ROLE;
SELECT count(*) FROM gpumem.columns();
DROP VIEW wage_sum;
DROP SCHEMA closed;
DROP TABLE public_numbers;
REVOKE EXECUTE ON FUNCTION gpumem.load(text, regclass, name), gpumem.drop(text) FROM regress_loader, regress_stranger;
DROP ROLE regress_owner, regress_loader, regress_reader, regress_stranger;
