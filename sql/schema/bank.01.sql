-- The bank: ledgers, balances, and money that is on its way from one account to another.
CREATE SCHEMA IF NOT EXISTS bank;

-- Every line of every ledger, for ever. What follows is made of it, in the transaction that lands it.
CREATE TABLE IF NOT EXISTS bank.entries (
    account   bigint         NOT NULL,
    entry     bigint         NOT NULL CHECK (entry > 0),  -- the account's lines are counted
    kind      text           NOT NULL,
    payer     bigint,                                     -- the transfer: null of open and close
    transfer  bigint,
    payee     bigint,
    amount    numeric(18, 2) NOT NULL,                    -- what the balance grew by
    balance   numeric(38, 2) NOT NULL,                    -- after it
    opened    numeric(18, 2) NOT NULL,
    closed    boolean        NOT NULL,
    topic     text           NOT NULL,
    partition integer        NOT NULL,
    "offset"  bigint         NOT NULL,
    PRIMARY KEY (account, entry)
);

-- How each account stands: its last line. That a balance is never below 0 is asked by sql/invariant, and not enforced here: a
-- rule of the processor's is to be seen when it is broken, and not to be hidden by a row that does not land.
CREATE TABLE IF NOT EXISTS bank.accounts (
    account   bigint         NOT NULL PRIMARY KEY,
    entries   bigint         NOT NULL,
    balance   numeric(38, 2) NOT NULL,
    opened    numeric(18, 2) NOT NULL,
    closed    boolean        NOT NULL,
    topic     text           NOT NULL,
    partition integer        NOT NULL,
    "offset"  bigint         NOT NULL
);

-- What has landed of each transfer: its withdrawal, and the deposit or return that settles it. Either may land first: they are of
-- different partitions. A row says that a step was done, and not how often, so that what was done twice does not add up.
CREATE TABLE IF NOT EXISTS bank.transfers (
    payer     bigint  NOT NULL,
    transfer  bigint  NOT NULL,
    payee     bigint  NOT NULL,
    withdrawn numeric(18, 2),
    deposited numeric(18, 2),
    returned  numeric(18, 2),
    status    text    NOT NULL GENERATED ALWAYS AS (
        CASE WHEN withdrawn IS NULL    THEN 'arrived first'
             WHEN deposited IS NOT NULL THEN 'deposited'
             WHEN returned IS NOT NULL  THEN 'returned'
             ELSE 'in flight' END) STORED,
    topic     text    NOT NULL,                           -- of its lines, that of the greatest partition and offset
    partition integer NOT NULL,
    "offset"  bigint  NOT NULL,
    PRIMARY KEY (payer, transfer)
);
-- The few that are in flight, among all that ever were.
CREATE INDEX IF NOT EXISTS in_flight ON bank.transfers (payer, transfer)
    WHERE withdrawn IS DISTINCT FROM coalesce(deposited, returned);

CREATE TABLE IF NOT EXISTS bank.refusals (
    payer     bigint         NOT NULL,
    transfer  bigint         NOT NULL,
    payee     bigint         NOT NULL,
    amount    numeric(18, 2) NOT NULL,
    reason    text           NOT NULL,
    topic     text           NOT NULL,
    partition integer        NOT NULL,
    "offset"  bigint         NOT NULL,
    PRIMARY KEY (payer, transfer)
);

-- All the money, in one row. In every snapshot total = opened, to the cent, for this reason:
-- A line of a ledger changes three tables in one transaction, so whatever lines a snapshot has, all three speak of just these.
-- Of one account they are the first n lines: all are of one partition, which lands in order. So its balance is the sum of the
-- amounts of its landed lines, and all balances together are what was opened, less the landed withdrawals, plus the landed
-- deposits and returns. In flight is the landed withdrawals less the landed deposits and returns, transfer by transfer; one
-- whose deposit has landed first counts with a minus until its withdrawal is here. The two cancel out, whatever is missing of
-- which partition. They would not if a transfer were settled twice: the balances would have both, and in flight counts one.
CREATE OR REPLACE VIEW bank.summary AS
SELECT balances, in_flight, balances + in_flight AS total, opened, on_their_way
FROM (SELECT coalesce(sum(balance), 0) AS balances, coalesce(sum(opened), 0) AS opened FROM bank.accounts) AS held,
     (SELECT coalesce(sum(coalesce(withdrawn, 0) - coalesce(deposited, returned, 0)), 0) AS in_flight,
             count(*) AS on_their_way
      FROM bank.transfers
      WHERE withdrawn IS DISTINCT FROM coalesce(deposited, returned)) AS moving;
