-- A load or drop takes effect when its transaction commits.
CREATE TABLE steps (i integer);
INSERT INTO steps SELECT generate_series(1, 100);
BEGIN;
SELECT gpumem.load('i', 'steps', 'i');
SELECT gpumem.sum('i');
-- Other backends do not see it yet, and the list is theirs.
SELECT count(*) FROM gpumem.columns();
ROLLBACK;
SELECT gpumem.sum('i');
BEGIN;
INSERT INTO steps VALUES (1000);
SELECT gpumem.load('i', 'steps', 'i');
ROLLBACK;
SELECT gpumem.load('i', 'steps', 'i'), gpumem.sum('i');
-- An error in the middle leaves the version from before.
BEGIN;
INSERT INTO steps VALUES (1000);
SELECT gpumem.load('i', 'steps', 'i'), gpumem.load('other', 'steps', 'i');
SELECT gpumem.sum('i');
SELECT 1 / 0;
COMMIT;
SELECT gpumem.sum('i');
SELECT name, rows FROM gpumem.columns();
BEGIN;
SELECT gpumem.drop('i');
SELECT gpumem.sum('i');
ROLLBACK;
SELECT gpumem.sum('i');
-- Savepoints.
BEGIN;
SAVEPOINT one;
SELECT gpumem.drop('i');
ROLLBACK TO one;
SELECT gpumem.sum('i');
INSERT INTO steps VALUES (1000);
SAVEPOINT two;
SELECT gpumem.load('i', 'steps', 'i');
SAVEPOINT three;
SELECT gpumem.load('i', 'steps', 'i'), gpumem.load('other', 'steps', 'i');
RELEASE three;
SELECT gpumem.sum('other');
SAVEPOINT four;
SELECT gpumem.drop('other');
SELECT gpumem.drop('other');
ROLLBACK TO four;
COMMIT;
SELECT name, rows FROM gpumem.columns();
BEGIN;
SELECT gpumem.drop('i');
SELECT gpumem.load('i', 'steps', 'i');
SELECT gpumem.drop('other');
SELECT gpumem.load('third', 'steps', 'i');
SELECT gpumem.drop('third');
COMMIT;
SELECT name, rows FROM gpumem.columns();
-- A column is as its table was.
INSERT INTO steps VALUES (5);
SELECT gpumem.sum('i');
TRUNCATE steps;
SELECT gpumem.sum('i');
SELECT count(*) FROM steps JOIN gpumem.filter('i', '>', 0) f ON steps.ctid = f WHERE i > 0;
-- A load that takes too long.
INSERT INTO steps SELECT generate_series(1, 300000);
SET statement_timeout = 1;
SELECT gpumem.load('i', 'steps', 'i');
RESET statement_timeout;
SELECT gpumem.sum('i');
SELECT gpumem.load('i', 'steps', 'i'), gpumem.sum('i');
-- Nothing to do with two-phase commit.
BEGIN;
SELECT gpumem.drop('i');
PREPARE TRANSACTION 'drop';
SELECT gpumem.drop('i');
-- A read-only transaction may load: the database stays as it is.
TRUNCATE steps;
BEGIN READ ONLY;
SELECT gpumem.load('i', 'steps', 'i');
COMMIT;
SELECT gpumem.drop('i');
-- The settings of the server.
SELECT context FROM pg_settings WHERE name = 'gpumem.backend';
SET gpumem.backend = 'cuda';
SET gpumem.nonsense = 1;
