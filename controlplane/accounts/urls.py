from django.urls import path

from controlplane.accounts import api

app_name = "accounts"

urlpatterns = [
    path("keys", api.KeyList.as_view(), name="keys"),
    path("keys/<str:prefix>", api.KeyDetail.as_view(), name="key"),
    path("keys/<str:prefix>/rotate", api.KeyRotate.as_view(), name="key-rotate"),
    path("tenants", api.TenantList.as_view(), name="tenants"),
    path("tenants/<slug:slug>", api.TenantDetail.as_view(), name="tenant"),
]
