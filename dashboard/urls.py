from django.urls import path

from dashboard.views import audit, keys, live, overview, playground, session, workers

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
    path("audit", audit.show, name="audit"),
    path("live/snapshot", live.snapshot, name="snapshot"),
]
