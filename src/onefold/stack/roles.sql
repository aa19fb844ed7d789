-- The logins of the services in the embedded stack and in the containers. None is a superuser; `onefold migrate` gives their rights.
-- The superuser runs this in single-user mode, at each start of a container. The settings onefold.owner, onefold.sink and so on
-- hold the passwords.
DO $$
DECLARE
    service text;
    thing text;
    is_superusers boolean := (SELECT datdba = 10 FROM pg_database WHERE datname = current_database());
BEGIN
    FOREACH service IN ARRAY ARRAY['owner', 'sink', 'worker', 'reader', 'verifier'] LOOP
        IF to_regrole('onefold_' || service) IS NULL THEN
            EXECUTE format('CREATE ROLE %I', 'onefold_' || service);
        END IF;
        EXECUTE format('ALTER ROLE %I LOGIN PASSWORD %L', 'onefold_' || service, current_setting('onefold.' || service));
    END LOOP;
    -- A dashboard that runs as the owner reads as the reader, too.
    GRANT onefold_reader TO onefold_owner;
    ALTER DEFAULT PRIVILEGES FOR ROLE onefold_owner GRANT USAGE ON SCHEMAS TO onefold_reader;
    ALTER DEFAULT PRIVILEGES FOR ROLE onefold_owner GRANT SELECT ON TABLES TO onefold_reader;
    ALTER ROLE onefold_owner CREATEDB;  -- for `onefold rebuild`
    GRANT pg_monitor, pg_signal_backend TO onefold_owner;  -- to see the sessions of all services, and to end one
    -- For the superuser "$user" is the schema onefold, where tables without a schema lie that earlier releases have made.
    ALTER ROLE onefold_owner SET search_path = "$user", public, onefold;
    EXECUTE format('ALTER DATABASE %I OWNER TO onefold_owner', current_database());
    IF is_superusers THEN
        -- Earlier releases made everything as the superuser, whose objects REASSIGN OWNED does not take. Objects of users have
        -- numbers from 16384 on; 10 is the superuser of initdb.
        FOR thing IN
            SELECT format('SCHEMA %I', nspname) FROM pg_namespace WHERE oid >= 16384 AND nspowner = 10 AND nspname !~ '^pg_'
            UNION ALL
            SELECT format('TABLE %s', oid::regclass) FROM pg_class AS class
            WHERE oid >= 16384 AND relowner = 10 AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
                AND relpersistence <> 't'  -- of sessions that a crash has ended
                -- a column's sequence goes with its table, a table of an extension with the extension
                AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = class.oid
                    AND (deptype = 'e' OR (relkind = 'S' AND deptype IN ('a', 'i'))))
            UNION ALL
            SELECT format('ROUTINE %s', oid::regprocedure) FROM pg_proc AS routine
            WHERE oid >= 16384 AND proowner = 10 AND NOT EXISTS (SELECT FROM pg_depend
                WHERE classid = 'pg_proc'::regclass AND objid = routine.oid AND deptype = 'e')
            UNION ALL
            SELECT format('TYPE %s', oid::regtype) FROM pg_type AS type
            WHERE oid >= 16384 AND typowner = 10 AND typtype IN ('c', 'd', 'e', 'r')
                AND (typrelid = 0 OR EXISTS (SELECT FROM pg_class WHERE pg_class.oid = typrelid AND relkind = 'c'))
                AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_type'::regclass AND objid = type.oid AND deptype = 'e')
        LOOP
            EXECUTE format('ALTER %s OWNER TO onefold_owner', thing);
        END LOOP;
    END IF;
END $$;

