"""The database itself refuses to change or delete audit events, whoever asks."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Django's test runner empties tables between tests that commit; its databases are called test_*.
    IF TG_OP = 'TRUNCATE' AND current_database() LIKE 'test\\_%' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'audit events are append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER audit_append_only_row BEFORE UPDATE OR DELETE ON audit_auditevent
    FOR EACH ROW EXECUTE FUNCTION audit_append_only();
CREATE TRIGGER audit_append_only_table BEFORE TRUNCATE ON audit_auditevent
    FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only();
"""

BACKWARD = """
DROP TRIGGER audit_append_only_table ON audit_auditevent;
DROP TRIGGER audit_append_only_row ON audit_auditevent;
DROP FUNCTION audit_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
