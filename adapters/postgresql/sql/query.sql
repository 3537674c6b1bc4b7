-- Sums and filters, beside the same in SQL.
CREATE TABLE numbers (small smallint, whole integer, big bigint, r real, d double precision, nothing integer);
-- More than one piece of 65,536 rows, the last one in part, with NULLs and rows that were deleted.
INSERT INTO numbers SELECT CASE WHEN i % 5 <> 0 THEN i % 1000 - 500 END, i, i::bigint << 40, i / 4.0, 1.0 / i
  FROM generate_series(1, 70000) i;
DELETE FROM numbers WHERE whole % 1000 = 1;
SELECT gpumem.load('small', 'numbers', 'small'), gpumem.load('whole', 'numbers', 'whole'), gpumem.load('big', 'numbers', 'big'),
  gpumem.load('r', 'numbers', 'r'), gpumem.load('d', 'numbers', 'd'), gpumem.load('nothing', 'numbers', 'nothing');
SET max_parallel_workers_per_gather = 0;
SET synchronize_seqscans = off;
SELECT gpumem.sum('small') = sum(small) AS small, gpumem.sum('whole') = sum(whole) AS whole, gpumem.sum('big') = sum(big) AS big,
  gpumem.sum('r') = sum(r::double precision)::numeric AS r, gpumem.sum('d')::double precision = sum(d) AS d, gpumem.sum('nothing') FROM numbers;
-- Each operator, by the rows that it finds.
CREATE FUNCTION same(name text, operator text, value numeric) RETURNS TABLE (rows bigint, same boolean) LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY EXECUTE format('SELECT ours.count, ours = theirs FROM
    (SELECT count(*), sum(hashtid(f)) FROM gpumem.filter(%1$L, %2$L, %3$s) f) ours,
    (SELECT count(*), sum(hashtid(ctid)) FROM numbers WHERE %1$I %2$s %3$s) theirs', name, operator, value);
END $$;
SELECT name, operator, value, rows, same FROM
  unnest(ARRAY['=', '<>', '<', '<=', '>', '>=']) operator, (VALUES ('small', -98), ('whole', 65538), ('big', 1099511627776 * 50000), ('r', 0.5), ('d', 0.5)) v(name, value),
  LATERAL same(name, operator, value);
SELECT * FROM same('small', '!=', 499);
SELECT * FROM same('nothing', '=', 0);
SELECT * FROM same('small', '<', 100000);
-- The rows themselves. The condition is checked again, because the table may have changed since.
UPDATE numbers SET whole = 0 WHERE whole = 70000;
SELECT whole, big >> 40 AS i FROM numbers JOIN gpumem.filter('whole', '>', 69997) f ON numbers.ctid = f WHERE whole > 69997;
SELECT gpumem.filter('whole', '=', 2);
-- Sums of integers are exact, and reals are as in PostgreSQL.
CREATE TABLE extremes (big bigint, d double precision);
INSERT INTO extremes VALUES (9223372036854775807, 'NaN'), (9223372036854775807, 'Infinity'), (-9223372036854775808, '-Infinity'), (9223372036854775807, 1e308), (NULL, NULL);
SELECT gpumem.load('big', 'extremes', 'big'), gpumem.load('d', 'extremes', 'd');
SELECT gpumem.sum('big'), gpumem.sum('big') = sum(big) AS same FROM extremes;
SELECT gpumem.sum('d');
SELECT value::double precision, (SELECT count(*) FROM gpumem.filter('d', '=', value)) AS equal, (SELECT count(*) FROM gpumem.filter('d', '<', value)) AS less
  FROM (VALUES (0), ('NaN'), ('Infinity'::numeric), (1e308)) v(value);
TRUNCATE extremes;
INSERT INTO extremes VALUES (0, 1.7e308), (0, 1.7e308);
SELECT gpumem.load('d', 'extremes', 'd');
SELECT gpumem.sum('d');
SELECT gpumem.drop('d');
-- An empty column.
DELETE FROM extremes;
SELECT gpumem.load('big', 'extremes', 'big'), gpumem.sum('big');
SELECT count(*) FROM gpumem.filter('big', '<>', 1);
-- Values and operators that do not fit.
SELECT gpumem.filter('whole', '=', 1.5);
SELECT gpumem.filter('whole', '=', 'NaN');
SELECT gpumem.filter('whole', '=', 9223372036854775808);
SELECT gpumem.filter('whole', '~', 1);
SELECT gpumem.filter('whole', '', 1);
SELECT gpumem.filter('whole', repeat('=', 100), 1);
SELECT gpumem.filter('d', '=', 'x');
SELECT count(*) FROM gpumem.filter('whole', '=', NULL);
-- No such column.
SELECT gpumem.sum('d');
SELECT gpumem.filter('d', '=', 1);
SELECT * FROM gpumem.attach_times('d');
SELECT gpumem.sum(repeat('x', 1000000));
SELECT gpumem.sum(NULL) IS NULL;
SELECT step, microseconds > 0 AS measured FROM gpumem.attach_times('whole');
SELECT gpumem.drop(name) FROM gpumem.columns();
