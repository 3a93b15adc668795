-- The role of the schedulers in the database of docker-compose.yml. psql runs it at every `docker compose up`, as the
-- superuser of the server, which is used for nothing else. The role owns its database, and has no other rights.
\set ON_ERROR_STOP on
\set password `cat "$HEADRACE_DATABASE_PASSWORD_FILE"`
SET log_min_error_statement = panic; -- no password in the server's log

BEGIN;
SELECT 'CREATE ROLE scheduler' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'scheduler') \gexec
ALTER ROLE scheduler LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD :'password';

SELECT format('ALTER DATABASE %I OWNER TO scheduler', current_database()) \gexec
SELECT format('REVOKE ALL ON DATABASE %I FROM PUBLIC', datname) FROM pg_database
 WHERE datname IN (current_database(), 'postgres', 'template1') \gexec

-- What an installation created whose schedulers connected as the superuser.
SELECT format('ALTER TABLE %s OWNER TO scheduler', oid::regclass) FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
   AND relowner <> 'scheduler'::regrole \gexec
SELECT format('ALTER FUNCTION %s OWNER TO scheduler', oid::regprocedure) FROM pg_proc
 WHERE pronamespace = 'public'::regnamespace AND proowner <> 'scheduler'::regrole \gexec
COMMIT;
