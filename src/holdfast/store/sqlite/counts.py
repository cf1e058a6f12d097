"""What is counted as rows come, by triggers, so that no call has to count all of them.

Two of the scripts of `schema.MIGRATIONS`, and the question whether the counts are right.
"""

COUNTS = """
ALTER TABLE sender ADD COLUMN received_count INTEGER NOT NULL DEFAULT 0
    CHECK (received_count >= 0);
ALTER TABLE sender ADD COLUMN applied_count INTEGER NOT NULL DEFAULT 0
    CHECK (applied_count BETWEEN 0 AND received_count);
ALTER TABLE sender ADD COLUMN stored_bytes INTEGER NOT NULL DEFAULT 0 CHECK (stored_bytes >= 0);
ALTER TABLE sender ADD COLUMN backlog_bytes INTEGER NOT NULL DEFAULT 0 CHECK (backlog_bytes >= 0);
ALTER TABLE external_total ADD COLUMN received_count INTEGER NOT NULL DEFAULT 0
    CHECK (received_count >= 0);

UPDATE sender SET (received_count, stored_bytes, backlog_bytes) = (
    SELECT COUNT(*), COALESCE(SUM(size) FILTER (WHERE kind = 'blob'), 0), COALESCE(SUM(size), 0)
    FROM chunk WHERE chunk.run_id = sender.run_id AND chunk.tbl = sender.tbl
    AND chunk.sender = sender.sender);
UPDATE sender SET (applied_count, backlog_bytes) = (
    SELECT COUNT(*), sender.backlog_bytes - COALESCE(SUM(size), 0)
    FROM applied JOIN chunk USING (run_id, tbl, sender, ordinal)
    WHERE applied.run_id = sender.run_id AND applied.segment = sender.segment
    AND applied.tbl = sender.tbl AND applied.sender = sender.sender);
UPDATE external_total SET received_count = (
    SELECT COUNT(*) FROM external_piece
    WHERE external_piece.run_id = external_total.run_id
    AND external_piece.series = external_total.series);

CREATE TRIGGER chunk_is_counted AFTER INSERT ON chunk BEGIN
    UPDATE sender SET received_count = received_count + 1,
        stored_bytes = stored_bytes + iif(NEW.kind = 'blob', NEW.size, 0),
        backlog_bytes = backlog_bytes + NEW.size
    WHERE run_id = NEW.run_id AND tbl = NEW.tbl AND sender = NEW.sender;
END;
CREATE TRIGGER applied_is_counted AFTER INSERT ON applied BEGIN
    UPDATE sender SET applied_count = applied_count + 1,
        backlog_bytes = backlog_bytes - (
            SELECT size FROM chunk WHERE run_id = NEW.run_id AND tbl = NEW.tbl
            AND sender = NEW.sender AND ordinal = NEW.ordinal)
    WHERE run_id = NEW.run_id AND tbl = NEW.tbl AND sender = NEW.sender;
END;
CREATE TRIGGER external_piece_is_counted AFTER INSERT ON external_piece BEGIN
    UPDATE external_total SET received_count = received_count + 1
    WHERE run_id = NEW.run_id AND series = NEW.series;
END;
"""
"""Counted as rows come, so that nobody counts them again. Only a sweep takes rows away, all of a
run's at once, and the counts with them (`watch.clear_run`)."""

KEPT = """
CREATE TABLE kept (
    client TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL CHECK (bytes >= 0)
) STRICT, WITHOUT ROWID;

INSERT INTO kept SELECT client, SUM(stored_bytes) FROM run JOIN sender USING (run_id)
WHERE state <> 'SWEPT' GROUP BY client;

CREATE TRIGGER chunk_is_kept AFTER INSERT ON chunk WHEN NEW.kind = 'blob' BEGIN
    INSERT INTO kept SELECT client, NEW.size FROM run WHERE run_id = NEW.run_id
    ON CONFLICT (client) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER run_is_swept AFTER UPDATE OF state ON run
WHEN NEW.state = 'SWEPT' AND OLD.state <> 'SWEPT' BEGIN
    UPDATE kept SET bytes = bytes - (
        SELECT COALESCE(SUM(stored_bytes), 0) FROM sender WHERE run_id = NEW.run_id)
    WHERE client = NEW.client;
END;
"""
"""A client's bytes in all of its runs that are not swept: compared with its quota by each binding,
which must not grow with the runs that it ever had."""

MISCOUNTED = """
SELECT 'table ' || tbl || ' of run ' || run_id FROM sender
WHERE (received_count, stored_bytes, backlog_bytes + COALESCE((
    SELECT SUM(size) FROM applied JOIN chunk USING (run_id, tbl, sender, ordinal)
    WHERE applied.run_id = sender.run_id AND applied.segment = sender.segment
    AND applied.tbl = sender.tbl AND applied.sender = sender.sender), 0)) <> (
    SELECT COUNT(*), COALESCE(SUM(size) FILTER (WHERE kind = 'blob'), 0), COALESCE(SUM(size), 0)
    FROM chunk WHERE chunk.run_id = sender.run_id AND chunk.tbl = sender.tbl
    AND chunk.sender = sender.sender)
OR applied_count <> (
    SELECT COUNT(*) FROM applied
    WHERE applied.run_id = sender.run_id AND applied.segment = sender.segment
    AND applied.tbl = sender.tbl AND applied.sender = sender.sender)
UNION ALL SELECT 'table ' || series || ' of run ' || run_id FROM external_total
WHERE received_count <> (
    SELECT COUNT(*) FROM external_piece
    WHERE external_piece.run_id = external_total.run_id
    AND external_piece.series = external_total.series)
UNION ALL SELECT 'all of client ' || client FROM (
    SELECT client, bytes FROM kept
    UNION ALL SELECT client, -SUM(stored_bytes) FROM run JOIN sender USING (run_id)
    WHERE state <> 'SWEPT' GROUP BY client)
GROUP BY client HAVING SUM(bytes) <> 0
"""
"""Senders, series and clients whose counts are not those of their rows: somebody else wrote to the
file."""
