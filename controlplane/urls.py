from django.urls import include, path

urlpatterns = [
    path("", include("controlplane.inference.urls")),
    path("", include("controlplane.telemetry.urls")),
    path("api/", include("controlplane.fleet.urls")),
    path("api/", include("controlplane.caching.urls")),
    path("api/", include("controlplane.accounts.urls")),
    path("api/", include("controlplane.metering.urls")),
    path("", include("dashboard.urls")),
]
