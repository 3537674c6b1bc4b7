-- SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
\echo Use "CREATE EXTENSION gpumem_pg" to load this file. \quit

GRANT USAGE ON SCHEMA gpumem TO PUBLIC;

CREATE FUNCTION load(name text, "table" regclass, "column" name) RETURNS bigint
  AS 'MODULE_PATHNAME', 'gpumem_pg_load' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION load(text, regclass, name) IS 'copies a column to the device, for all backends once the transaction commits; returns its rows';

CREATE FUNCTION drop(name text) RETURNS void
  AS 'MODULE_PATHNAME', 'gpumem_pg_drop' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION drop(text) IS 'frees a column when the transaction commits';

CREATE FUNCTION sum(name text) RETURNS numeric
  AS 'MODULE_PATHNAME', 'gpumem_pg_sum' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION sum(text) IS 'sum of the values that are not null; NULL if there are none';

CREATE FUNCTION filter(name text, operator text, value numeric) RETURNS SETOF tid
  AS 'MODULE_PATHNAME', 'gpumem_pg_filter' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED ROWS 1000;
COMMENT ON FUNCTION filter(text, text, numeric) IS 'ctids of the rows whose value matches; operator is one of = <> < <= > >=';

CREATE FUNCTION columns(OUT name text, OUT "table" regclass, OUT "column" name, OUT type regtype, OUT rows bigint,
    OUT bytes bigint, OUT place text, OUT version bigint, OUT loader regrole) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'gpumem_pg_columns' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION columns() IS 'the columns of this database that the current role may read or drop';

CREATE FUNCTION attach_times(name text, OUT step text, OUT microseconds float8) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'gpumem_pg_attach_times' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION attach_times(text) IS 'attaches to a column, and reports how long each step took this backend';

-- Device memory is scarce, so an administrator says who may fill it. The others check the right to read the table.
REVOKE EXECUTE ON FUNCTION load(text, regclass, name), drop(text) FROM PUBLIC;
