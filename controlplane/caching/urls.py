from django.urls import path
from drf_spectacular.views import SpectacularAPIView

from controlplane.caching import api

app_name = "caching"

urlpatterns = [
    path("schema", SpectacularAPIView.as_view(), name="schema"),
    path("store", api.StoreDetail.as_view(), name="store"),
    path("store/alerts", api.AlertList.as_view(), name="alerts"),
    path("store/purge", api.PurgeView.as_view(), name="purge"),
    path("store/warming", api.WarmingList.as_view(), name="warming"),
    path("store/warming/<int:job>", api.WarmingDetail.as_view(), name="warming-job"),
    path("retention", api.PolicyDetail.as_view(), name="policy"),
    path("retention/preview", api.PreviewView.as_view(), name="preview"),
    path("retention/rollback", api.RollbackView.as_view(), name="rollback"),
    path("retention/versions", api.VersionList.as_view(), name="versions"),
    path("retention/versions/<int:number>", api.VersionDetail.as_view(), name="version"),
    path("retention/pins", api.PinList.as_view(), name="pins"),
    path("retention/pins/<path:name>", api.PinDetail.as_view(), name="pin"),
]
