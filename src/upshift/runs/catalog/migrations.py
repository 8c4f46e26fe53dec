"""The catalog's tables, as numbered steps of SQL.

Step *n* takes a catalog from version *n - 1* to version *n*; a new catalog takes all of them. A
step that was released is never changed: what comes next is another step. Each is applied in one
transaction, so that a catalog is at one version or at the next, whatever is killed.
"""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE runs (
            id TEXT NOT NULL PRIMARY KEY,
            pipeline TEXT NOT NULL,
            status TEXT NOT NULL,
            target TEXT NOT NULL,
            store TEXT NOT NULL,
            user TEXT,
            tags TEXT NOT NULL,      -- JSON: a list
            started REAL NOT NULL,   -- all times are seconds since the epoch
            ended REAL,
            source TEXT NOT NULL,    -- JSON: an object
            params TEXT NOT NULL     -- JSON: name to artifact
        )
        """,
        "CREATE INDEX runs_by_start ON runs (started)",
        """
        CREATE TABLE tasks (
            run TEXT NOT NULL,
            step TEXT NOT NULL,
            item INTEGER,            -- null: the step is not mapped
            status TEXT NOT NULL,
            cached INTEGER NOT NULL,
            cache_reason TEXT,
            key TEXT,
            origin TEXT              -- JSON: [run, step, item, attempt]
        )
        """,
        # NULLs count as different from each other in a unique index, hence the expression.
        "CREATE UNIQUE INDEX task ON tasks (run, step, ifnull(item, -1))",
        """
        CREATE TABLE attempts (
            run TEXT NOT NULL,
            step TEXT NOT NULL,
            item INTEGER,
            number INTEGER NOT NULL,
            status TEXT NOT NULL,
            reason TEXT,
            backend TEXT NOT NULL,
            handle TEXT,
            node TEXT,
            started REAL,
            ended REAL,
            key TEXT,                -- of a result that completed
            result TEXT,             -- JSON
            failure TEXT             -- JSON
        )
        """,
        "CREATE UNIQUE INDEX attempt ON attempts (run, step, ifnull(item, -1), number)",
        "CREATE INDEX attempts_by_key ON attempts (key, ended) WHERE key IS NOT NULL",
    ),
    ("ALTER TABLE attempts ADD COLUMN waits TEXT",),
    ("ALTER TABLE attempts ADD COLUMN target TEXT",),
    (
        """
        CREATE TABLE versions (
            pipeline TEXT NOT NULL,
            step TEXT NOT NULL,
            number INTEGER NOT NULL,
            run TEXT NOT NULL,       -- with the next three: the attempt that made it
            made_step TEXT NOT NULL,
            item INTEGER,
            attempt INTEGER NOT NULL,
            holder TEXT NOT NULL,    -- the first run of the pipeline that has it
            holder_item INTEGER,
            store TEXT NOT NULL,
            made REAL,
            tags TEXT NOT NULL,      -- JSON: a list
            PRIMARY KEY (pipeline, step, number)
        )
        """,
        "CREATE INDEX versions_by_holder ON versions (holder)",
    ),
)
