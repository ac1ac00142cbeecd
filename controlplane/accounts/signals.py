"""What other parts of the control plane hear of tenants and keys, in the transaction of the change."""

from __future__ import annotations

from django.dispatch import Signal

tenant_deleted = Signal()
"""`tenant`: its slug, `actor`: the principal. What still runs for the tenant is to end."""

budget_set = Signal()
"""`subject`: `t:<tenant>` or `k:<root key>`. Sent when the change is committed."""
