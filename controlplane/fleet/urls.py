from django.urls import path

from controlplane.fleet import api

app_name = "fleet"

urlpatterns = [
    path("deployments", api.DeploymentList.as_view(), name="deployments"),
    path("deployments/<slug:name>", api.DeploymentDetail.as_view(), name="deployment"),
    path("deployments/<slug:name>/scale", api.DeploymentScale.as_view(), name="deployment-scale"),
    path("workers", api.WorkerList.as_view(), name="workers"),
    path("nodes", api.NodeList.as_view(), name="nodes"),
]
