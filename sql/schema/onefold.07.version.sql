-- Which version of the tables in this schema the database has: one row. A file that changes them in a way that an older
-- sink must not meet raises the number, and older ones refuse to start; what is only added needs no new number.
CREATE TABLE IF NOT EXISTS onefold.version (
    number integer NOT NULL CHECK (number > 0),
    one    boolean NOT NULL DEFAULT true PRIMARY KEY CHECK (one)
);
INSERT INTO onefold.version (number) VALUES (1) ON CONFLICT DO NOTHING;
