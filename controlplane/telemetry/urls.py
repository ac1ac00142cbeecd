from django.urls import path

from controlplane.telemetry.views import metrics

app_name = "telemetry"

urlpatterns = [path("metrics", metrics, name="metrics")]
