-- Loading, listing and dropping, and whatever cannot be loaded.
CREATE EXTENSION gpumem_pg;
CREATE TABLE rainfall (station smallint, day integer, seen bigint, amount real, total double precision, note text, gone integer);
INSERT INTO rainfall SELECT i % 10, i, i * 1000000000::bigint, i / 4.0, i / 8.0, 'dry', i FROM generate_series(1, 1000) i;
ALTER TABLE rainfall DROP COLUMN gone;
SELECT gpumem.load('station', 'rainfall', 'station'), gpumem.load('day', 'rainfall', 'day'), gpumem.load('seen', 'rainfall', 'seen'),
  gpumem.load('amount', 'rainfall', 'amount'), gpumem.load('total', 'rainfall', 'total');
SELECT name, "table", "column", type, rows, bytes, place = current_setting('gpumem.backend') || ':0' AS there, version,
  loader = current_user::regrole AS mine FROM gpumem.columns();
-- A second load replaces the first.
DELETE FROM rainfall WHERE day > 900;
SELECT gpumem.load('day', 'rainfall', 'day');
SELECT name, rows, version FROM gpumem.columns() WHERE name = 'day';
SELECT gpumem.drop(name) FROM gpumem.columns();
SELECT count(*) FROM gpumem.columns();
-- An empty table, and one of which no row is visible.
CREATE TABLE empty (i integer);
SELECT gpumem.load('empty', 'empty', 'i');
INSERT INTO empty VALUES (1);
DELETE FROM empty;
SELECT gpumem.load('empty', 'empty', 'i');
SELECT name, rows FROM gpumem.columns();
SELECT gpumem.drop('empty');
-- What is NULL does nothing.
SELECT gpumem.load(NULL, 'rainfall', 'day') IS NULL, gpumem.load('day', NULL, 'day') IS NULL, gpumem.load('day', 'rainfall', NULL) IS NULL;
-- Not a column that can be loaded.
SELECT gpumem.load('note', 'rainfall', 'note');
SELECT gpumem.load('gone', 'rainfall', 'gone');
SELECT gpumem.load('ctid', 'rainfall', 'ctid');
SELECT gpumem.load('none', 'rainfall', 'none');
SELECT gpumem.load('none', 'nowhere', 'day');
SELECT gpumem.load('none', 0, 'day');
-- Not a table that can be loaded.
CREATE VIEW rainfall_view AS SELECT * FROM rainfall;
SELECT gpumem.load('day', 'rainfall_view', 'day');
CREATE TABLE parts (i integer) PARTITION BY RANGE (i);
SELECT gpumem.load('i', 'parts', 'i');
CREATE TABLE part PARTITION OF parts FOR VALUES FROM (1) TO (10);
INSERT INTO parts VALUES (1), (2);
SELECT gpumem.load('i', 'part', 'i');
CREATE TEMPORARY TABLE own (i integer);
SELECT gpumem.load('i', 'own', 'i');
CREATE INDEX by_day ON rainfall (day);
SELECT gpumem.load('day', 'by_day', 'day');
CREATE MATERIALIZED VIEW rainfall_copy AS SELECT * FROM rainfall WITH NO DATA;
SELECT gpumem.load('day', 'rainfall_copy', 'day');
REFRESH MATERIALIZED VIEW rainfall_copy;
SELECT gpumem.load('day', 'rainfall_copy', 'day');
SELECT gpumem.drop('day'), gpumem.drop('i');
-- Names.
SELECT gpumem.load('', 'rainfall', 'day');
SELECT gpumem.load(repeat('x', 53), 'rainfall', 'day');
SELECT gpumem.load(repeat('x', 1000000), 'rainfall', 'day');
SELECT gpumem.load('a/b', 'rainfall', 'day');
SELECT gpumem.load(E'a\nb', 'rainfall', 'day');
SELECT gpumem.load(repeat('x', 52), 'rainfall', 'day'), gpumem.load(' "; drop', 'rainfall', 'day'), gpumem.load('1.Größe', 'rainfall', 'day');
SELECT name, rows FROM gpumem.columns();
SELECT gpumem.drop(name) FROM gpumem.columns();
SELECT gpumem.drop('day');
SELECT gpumem.drop('');
