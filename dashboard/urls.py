from django.urls import path

from dashboard.views import (
    audit,
    cache,
    cache_actions,
    cache_policy,
    keys,
    live,
    overview,
    playground,
    session,
    workers,
)

app_name = "dashboard"
urlpatterns = [
    path("", overview.show, name="overview"),
    path("login", session.sign_in, name="login"),
    path("logout", session.sign_out, name="logout"),
    path("workers", workers.show, name="workers"),
    path("playground", playground.show, name="playground"),
    path("keys", keys.index, name="keys"),
    path("keys/new", keys.create, name="key-create"),
    path("keys/<int:key_id>/revoke", keys.revoke, name="key-revoke"),
    path("cache", cache.show, name="cache"),
    path("cache/policy", cache_policy.edit, name="cache-policy"),
    path("cache/history", cache_policy.history, name="cache-history"),
    path("cache/history/<int:number>/restore", cache_policy.rollback, name="cache-rollback"),
    path("cache/purge", cache_actions.purge, name="cache-purge"),
    path("cache/warming", cache_actions.warming, name="cache-warming"),
    path("cache/warming/<int:job>/cancel", cache_actions.warming_cancel, name="cache-warming-cancel"),
    path("cache/pins", cache_actions.pin, name="cache-pin"),
    path("cache/pins/<str:name>/remove", cache_actions.unpin, name="cache-unpin"),
    path("audit", audit.show, name="audit"),
    path("live/snapshot", live.snapshot, name="snapshot"),
]
